//! The options of `farfork volume mount` that the client of the volume also has.

use std::time::Duration;

use clap::Args;
use farfork_volume::mount::MountOptions;

/// How a mount reads and opens files.
#[derive(Args, Clone, Debug)]
pub(super) struct MountOptionArgs {
    /// Let the kernel read files by itself if a program opens them with O_RDONLY while they are not open on this node.
    ///
    /// Published data is then read as fast as from the local file system, without a request to the client process. Use this
    /// option for volumes that are mostly read, such as models, datasets and programs.
    ///
    /// While a program has a file open in this way, programs of this node can still write it with O_WRONLY. Each such write
    /// waits until its data is published. open(2) with O_RDWR waits at most a second for the file to be closed, and then
    /// fails with ETXTBSY. Programs of other nodes are not affected.
    ///
    /// This option needs Linux 6.9. On an older kernel, or if the node's store is on overlayfs, each read is a request.
    #[arg(long)]
    read_passthrough: bool,
    /// While the catalog cannot be read, open files for reading as this node has them.
    ///
    /// Such a file may lack changes of other nodes. Without this option, open(2) waits for --catalog-wait-s, and then fails
    /// with EIO. Files that are opened for writing are not affected, nor are calls that change a directory.
    #[arg(long)]
    stale_reads: bool,
    /// Time for which open(2) waits while the catalog cannot be read. Then it fails with EIO.
    ///
    /// This is also true of calls that create, rename or remove a name, or change attributes by a path, on a node that is not
    /// the writer. The time limit of a request to etcd is 5 s, so a call may wait 5 s longer.
    #[arg(long, value_name = "SECONDS", default_value_t = MountOptions::CATALOG_WAIT.as_secs())]
    catalog_wait_s: u64,
}

impl MountOptionArgs {
    pub(super) fn options(&self) -> MountOptions {
        MountOptions {
            read_passthrough: self.read_passthrough,
            stale_reads: self.stale_reads,
            catalog_wait: Duration::from_secs(self.catalog_wait_s),
        }
    }

    /// The arguments of a process with the same options.
    pub(super) fn arguments(&self) -> Vec<String> {
        let switches = [(self.read_passthrough, "--read-passthrough"), (self.stale_reads, "--stale-reads")];
        let mut arguments: Vec<String> =
            switches.into_iter().filter(|(is_set, _)| *is_set).map(|(_, option)| option.to_owned()).collect();
        arguments.push(format!("--catalog-wait-s={}", self.catalog_wait_s));
        arguments
    }
}
