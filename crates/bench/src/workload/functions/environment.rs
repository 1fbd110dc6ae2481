//! The Python of the embedded functions: a virtual environment with their packages, made when it is first needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use farfork_terminal::cache_dir::find_cache_dir;

use crate::error::BenchError;

/// The packages, with versions and hashes.
const REQUIREMENTS: &str = include_str!("requirements.txt");

/// The file that is written when all packages are installed.
const COMPLETE: &str = "complete";

/// Whether the environment exists with all packages.
pub(crate) fn is_installed() -> bool {
    find_environment().is_ok_and(|environment| environment.join(COMPLETE).exists())
}

/// The environment's directory. Its name depends on the requirements, so a change of them makes a new environment.
fn find_environment() -> Result<PathBuf, BenchError> {
    let cache = find_cache_dir().ok_or_else(|| failed("neither FARFORK_CACHE nor HOME is set"))?;
    Ok(cache.join(format!("functions-{:08x}", crc32c::crc32c(REQUIREMENTS.as_bytes()))))
}

/// Returns the environment's Python. Installs the environment if it is missing, which downloads about 50 MB.
///
/// # Errors
/// [`BenchError::FunctionPackages`]: there is no Python with venv, or the packages cannot be downloaded.
pub(crate) fn find_or_install() -> Result<PathBuf, BenchError> {
    let environment = find_environment()?;
    let python = environment.join("bin/python3");
    if !environment.join(COMPLETE).exists() {
        install(&environment, &python)?;
    }
    Ok(python)
}

fn install(environment: &Path, python: &Path) -> Result<(), BenchError> {
    let cannot_write = |path: &Path| {
        let path = path.to_owned();
        move |cause| BenchError::File { path, cause }
    };
    if environment.exists() {
        fs::remove_dir_all(environment).map_err(cannot_write(environment))?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    let requirements = environment.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).map_err(cannot_write(&requirements))?;
    // `--no-deps`: the file names all packages. pyaes has no wheel.
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]);
    run(pip.args(["--only-binary=:all:", "--no-binary=pyaes", "--requirement"]).arg(&requirements))?;
    let complete = environment.join(COMPLETE);
    fs::write(&complete, "").map_err(cannot_write(&complete))
}

fn run(command: &mut Command) -> Result<(), BenchError> {
    let output = command.output().map_err(|cause| failed(format!("{command:?}: {cause}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(failed(text.lines().last().unwrap_or("no message")))
}

fn failed(cause: impl Into<String>) -> BenchError {
    BenchError::FunctionPackages { cause: cause.into() }
}
