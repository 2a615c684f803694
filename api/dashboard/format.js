// Numbers and times as people read them.

/** `0.4 s`, `12 s`, `3m 05s`, `2h 10m`, `4d 03h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const pad = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${pad(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${pad(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d ${pad(Math.floor((whole % 86400) / 3600))}h`;
}

/** `812 B`, `7.3 MB`. */
export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (bytes >= 1000 && place < units.length - 1) {
    bytes /= 1000;
    place += 1;
  }
  return `${place ? bytes.toFixed(1) : bytes} ${units[place]}`;
}

/** Three figures, or as many as a whole number has; `–` where nothing was measured. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString("en");
  if (size < 0.1) return String(Number(value.toPrecision(3)));
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 3);
}

/** `93 %`. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1)} %`;
}

/** `just now`, `3m ago`: of a time that the API told. */
export function ago(time, now = Date.now()) {
  const seconds = (now - Date.parse(time)) / 1000;
  if (seconds < 10) return "just now";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s ago`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ago`;
  if (whole < 172800) return `${Math.floor(whole / 3600)}h ago`;
  return `${Math.floor(whole / 86400)}d ago`;
}

/** `2026-03-01 14:05:09`, in the reader's zone. */
export function clock(time) {
  const at = new Date(time);
  const pad = (value) => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function seconds(from, to) {
  return (Date.parse(to) - Date.parse(from)) / 1000;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
