//! The commands and blocks of the guides that no test runs, each with the reason. Tests run everything else that
//! `page.rs` finds.

use super::page::Page;

/// A command that is not run, or a block without commands.
pub(super) struct GuideException {
    page: &'static str,
    /// The beginning of the command's line, or of the first line of the block.
    prefix: &'static str,
    reason: &'static str,
}

const EXCEPTIONS: &[GuideException] = &[
    except("first-fork.md", "make install", "installs packages"),
    except("first-fork.md", "farfork up --nodes 3", "the shared cluster of the tests is there instead"),
    except("first-fork.md", "farfork down", "ends a user's cluster; `nothing_is_left_behind` tests the removal"),
    except("python.md", "python3 -m venv", "makes an environment in the home directory"),
    except("python.md", "pip install", "installs packages; PYTHONPATH names the package instead"),
    except("python.md", "farfork up --nodes 3", "the shared cluster of the tests is there instead"),
    except("python-libraries.md", "%load_ext", "a cell of a notebook; `notebooks_call_and_branch` runs one like it"),
    except("python-libraries.md", "%%branch", "a cell of a notebook; `notebooks_call_and_branch` runs one like it"),
    except("c.md", "ldconfig", "changes the machine's linker cache; LD_LIBRARY_PATH names the library instead"),
    except("observing.md", "farfork up --nodes 3", "a cluster of the test serves metrics instead"),
    except("observing.md", "rate(", "an expression for Prometheus"),
    except("observing.md", "farfork ps --watch", "runs until it is interrupted; `ps_watches_children` tests it"),
    except("volumes.md", "farfork up --nodes 3", "a cluster of the test has the volume instead"),
    except(
        "volumes.md",
        "apt-get install",
        "changes etcd and daemons of three machines; `volumes_agree_in_etcd` has the rest",
    ),
    except(
        "volumes.md",
        "farfork --node 10.0.0.2:7400",
        "needs another machine; `volumes_are_managed_from_any_node` tests it",
    ),
    except("several-machines.md", "[defaults]", "an inventory; `nodes_are_deployed_over_ssh` has one"),
    except("several-machines.md", "farfork cluster deploy", "uses ssh; `nodes_are_deployed_over_ssh` tests it"),
    except("coordinator.md", "known_hosts = ", "an inventory; `nodes_are_deployed_over_ssh` has one"),
    except("coordinator.md", "farfork cluster deploy", "uses ssh; `nodes_are_deployed_over_ssh` tests it"),
    except("coordinator.md", "farfork cluster undeploy", "uses ssh; `nodes_are_deployed_over_ssh` tests it"),
    except("coordinator.md", "farfork bench rpc", "uses ssh; `experiments_run_on_hosts` tests it"),
    except("coordinator.md", "farfork bench run", "uses ssh; `plans_run_on_hosts` tests it"),
    except("coordinator.md", "farfork bench report", "needs the results of a plan; `benchmarks_run` makes reports"),
    except("coordinator.md", "inventory = ", "a plan; `plans_run_on_hosts` has one"),
    except("several-machines.md", "scp ", "copies to another machine"),
    except(
        "several-machines.md",
        "farfork cluster init --name a --cluster blue --catalog",
        "needs an etcd; `clusters_are_found_in_the_catalog` tests it",
    ),
    except("several-machines.md", "# /etc/systemd/system/", "a unit for systemd"),
];

const fn except(page: &'static str, prefix: &'static str, reason: &'static str) -> GuideException {
    GuideException { page, prefix, reason }
}

/// Returns whether a line of a page is an exception.
pub(super) fn contain(page: &Page, line: &str) -> bool {
    EXCEPTIONS.iter().any(|exception| exception.is_of(page, line))
}

/// Requires that each exception matches a line, and has a reason.
pub(super) fn require_needed(pages: &[Page]) {
    for exception in EXCEPTIONS {
        let is_needed = pages.iter().any(|page| page.lines().any(|line| exception.is_of(page, line)));
        assert!(is_needed, "{} has no line that begins with `{}`", exception.page, exception.prefix);
        assert!(!exception.reason.is_empty(), "{}: `{}` has no reason", exception.page, exception.prefix);
    }
}

impl GuideException {
    fn is_of(&self, page: &Page, line: &str) -> bool {
        page.name == self.page && line.starts_with(self.prefix)
    }
}
