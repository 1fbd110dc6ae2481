//! The errors of CRIU and of its commands.

/// Why CRIU cannot be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CriuError {
    /// CRIU is not installed.
    #[error("criu is not installed: on Debian, `apt-get install criu`, as root")]
    Missing,
    /// CRIU does not work with this kernel.
    #[error(
        "criu does not work here, says `criu check`: {output}; a newer one may (Linux 6.13 and later need CRIU 4.1, which \
         Debian 13 has): put its directory first in PATH"
    )]
    Unusable {
        /// The output of `criu check`.
        output: String,
    },
    /// A command of CRIU failed.
    #[error("criu {command}: {output}")]
    Command {
        /// `dump`, `restore` …
        command: &'static str,
        /// The first error of the command's log.
        output: String,
    },
}
