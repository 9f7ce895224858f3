# Filled by bindings: install(EXPORT) of rueda::rueda, headers, pkg-config.
