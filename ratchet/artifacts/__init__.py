"""Where bytes that must last live. No torch: manifests are read by control processes too."""
