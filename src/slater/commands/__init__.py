"""The subcommands of `slater`, one module each; see `slater.cli.COMMANDS`."""
