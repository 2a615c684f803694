#!/bin/sh
# Makes or upgrades the two databases of a Temporal server. Again: no effect.
set -eu
SQL_PASSWORD="$(cat /run/secrets/postgres_password)"
export SQL_PASSWORD
for database in temporal temporal_visibility; do
    tool="temporal-sql-tool --plugin postgres12 --ep postgres -p 5432 -u ratchet --db $database"
    $tool create
    $tool setup-schema -v 0.0
    $tool update-schema -d "/etc/temporal/schema/postgresql/v12/${database#temporal_}/versioned"
done
