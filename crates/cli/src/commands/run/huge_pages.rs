//! `enable_huge_pages`: gives a program huge pages, by an environment variable and by a second process, `farfork tend`.

use std::env;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use farfork_sys::huge_page;
use farfork_sys::process_identity::ProcessIdentity;

use crate::output;

/// Environment variable that the GNU C library (2.35 and later) reads when a program starts. Other C libraries ignore
/// it.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Tunable that makes malloc(3) call madvise(2) with MADV_HUGEPAGE on new memory. Its value is 1.
const MALLOC_TUNABLE: &str = "glibc.malloc.hugetlb";

/// Enables huge pages for the program that is about to replace this process.
pub(super) fn enable_huge_pages(program: &mut Command) -> anyhow::Result<()> {
    program.env(TUNABLES, add_malloc_tunable(env::var(TUNABLES).ok()));
    huge_page::enable_thp().context("huge pages cannot be permitted")?;
    if !rustix::process::geteuid().is_root() {
        output::print_note(
            "farfork: huge pages only for malloc of the C library: all other memory needs root; use sudo",
        );
        return Ok(());
    }
    let own_pid = i32::try_from(std::process::id()).context("the own process id")?;
    let identity = ProcessIdentity::of(own_pid).context("/proc/self/stat")?;
    // The started process starts another one and exits, so that the program has no unknown child.
    let starter = Command::new("/proc/self/exe")
        .args(["tend", &identity.to_string()])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let status = starter.context("cannot start the process that collapses memory into huge pages")?;
    anyhow::ensure!(status.success(), "cannot start the process that collapses memory into huge pages: {status}");
    Ok(())
}

/// Adds the malloc tunable to the variable's value, unless the value already sets it.
fn add_malloc_tunable(existing: Option<String>) -> String {
    let own = format!("{MALLOC_TUNABLE}=1");
    match existing.filter(|tunables| !tunables.is_empty()) {
        Some(tunables) if tunables.split(':').any(|one| one.starts_with(MALLOC_TUNABLE)) => tunables,
        Some(tunables) => format!("{tunables}:{own}"),
        None => own,
    }
}

#[cfg(test)]
mod tests {
    use super::add_malloc_tunable;

    #[test]
    fn malloc_tunables_of_the_user_are_kept() {
        let with = |existing: &str| add_malloc_tunable(Some(existing.to_owned()));
        assert_eq!(add_malloc_tunable(None), "glibc.malloc.hugetlb=1");
        assert_eq!(with(""), "glibc.malloc.hugetlb=1");
        assert_eq!(with("glibc.malloc.check=3"), "glibc.malloc.check=3:glibc.malloc.hugetlb=1");
        assert_eq!(with("glibc.malloc.hugetlb=2:a.b=1"), "glibc.malloc.hugetlb=2:a.b=1");
    }
}
