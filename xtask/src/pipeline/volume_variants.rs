//! The tests of mounted volumes with each option that changes how nodes replicate and publish. `cargo xtask test-long` runs
//! them; `cargo xtask test` runs the tests with the defaults.

use std::path::Path;
use std::process::Command;

use super::cargo;
use crate::workspace::Workspace;

/// The arguments that select the tests. All crates are selected, so that nothing is built again.
const TESTS: [&str; 5] = ["test", "--workspace", "--no-fail-fast", "--test", "mount"];

/// The arguments that select the complete crash matrix, a long test of `TESTS`.
const CRASH_MATRIX: [&str; 3] = ["--", "--ignored", "all_faults_of_the_matrix_lose_nothing"];

/// A value of an option, and the names of the steps that run the tests with it.
pub(super) struct VolumeVariant {
    /// Name of the step with the model test, the POSIX suites and all other tests that are not long.
    pub(super) suite: &'static str,
    /// Name of the step with the complete crash matrix.
    pub(super) crash_matrix: &'static str,
    /// The environment variable of the option, which the processes of the tests read.
    variable: &'static str,
    value: &'static str,
}

/// The copy method for which the replicas must be on a file system with reflinks.
const SHARING_METHOD: &str = "none";

/// Makes a variant: the name of the option in the steps, its environment variable, and the value.
macro_rules! variant {
    ($option:literal, $variable:literal, $value:literal) => {
        VolumeVariant {
            suite: concat!("volumes, ", $option, " ", $value),
            crash_matrix: concat!("crash matrix, ", $option, " ", $value),
            variable: $variable,
            value: $value,
        }
    };
}

/// All variants. `memcpy`, `off` and `normal` are the defaults.
pub(super) const VARIANTS: [VolumeVariant; 6] = [
    variant!("copy", "FARFORK_VOLUME_COPY", "async"),
    variant!("copy", "FARFORK_VOLUME_COPY", "async-batch"),
    variant!("copy", "FARFORK_VOLUME_COPY", "event"),
    variant!("copy", "FARFORK_VOLUME_COPY", "none"),
    variant!("compress", "FARFORK_VOLUME_COMPRESS", "lz4"),
    variant!("priority", "FARFORK_VOLUME_PRIORITY", "idle"),
];

impl VolumeVariant {
    /// Returns the command of the step `suite`. A file system with reflinks is made in `scratch`.
    pub(super) fn suite_command(&self, workspace: &Workspace, scratch: &Path) -> Command {
        self.command(workspace, scratch, &TESTS)
    }

    /// Returns the command of the step `crash_matrix`.
    pub(super) fn crash_matrix_command(&self, workspace: &Workspace, scratch: &Path) -> Command {
        self.command(workspace, scratch, &[&TESTS[..], &CRASH_MATRIX].concat())
    }

    fn command(&self, workspace: &Workspace, scratch: &Path, arguments: &[&str]) -> Command {
        let mut command = if self.value == SHARING_METHOD {
            cargo::command_with_reflinks(workspace, scratch, arguments)
        } else {
            cargo::isolated_command(workspace, arguments)
        };
        command.env(self.variable, self.value);
        command
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn each_variant_is_one_value_of_one_option() {
        let workspace = Workspace::of_this_build();
        for variant in VARIANTS {
            let command = variant.suite_command(&workspace, Path::new("/scratch"));
            let variables: Vec<_> = command.get_envs().filter(|(name, _)| *name == variant.variable).collect();
            assert_eq!(variables, [(OsStr::new(variant.variable), Some(OsStr::new(variant.value)))]);
            assert!(variant.suite.ends_with(variant.value) && variant.crash_matrix.ends_with(variant.value));
            let program = command.get_program().to_string_lossy();
            assert_eq!(program.ends_with("with-reflinks.sh"), variant.value == SHARING_METHOD, "{program}");
        }
    }
}
