//! The options for volumes that `farfork node` and `farfork up` share.

use std::path::PathBuf;

use clap::Args;
use farfork_cluster::catalog::CatalogLocation;
use farfork_node::options::VolumeOptions;
use farfork_volume::chain::LogCompression;
use farfork_volume::process::{CopyMethod, OffloadMode, WorkPriority};
use farfork_wire::NodeName;

use crate::size::parse_nonzero_size;

/// How a node replicates and publishes its volumes.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeServiceArgs {
    /// Time after which a node that does not answer is removed from the chains of its volumes, in milliseconds.
    ///
    /// A removed node returns by itself when it answers again. Time in which the waiting node gets no CPU time does not
    /// count. A process that writes the files of volumes, and does not answer its own node for this time, is killed and
    /// started again. Choose several seconds for machines that are busy all the time.
    #[arg(long, env = "FARFORK_DETECT_MS", value_name = "MS", default_value_t = VolumeOptions::DETECTION_MS, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    detect_ms: u64,
    /// Bytes of its log that a replica must take in each --detect-ms, while it has not the whole log.
    ///
    /// A slower replica is removed from the chain after ten times --detect-ms, because programs would wait for it. The default
    /// is half a Mbit/s. A faster link never removes a replica, however long its backlog takes.
    #[arg(long, env = "FARFORK_REPLICA_RATE_MIN", value_name = "SIZE", default_value = "64KiB", value_parser = parse_nonzero_size)]
    replica_rate_min: u64,
    /// Interval between two comparisons of the replicas of a volume, in hours; 0 for never.
    ///
    /// The node of the chain's head compares them. It repairs a damaged replica on a node that has not mounted the volume.
    #[arg(long, env = "FARFORK_SCRUB_HOURS", value_name = "HOURS", default_value_t = VolumeOptions::SCRUB_HOURS)]
    scrub_hours: u32,
    /// Method to copy data from the logs of volumes into their files: memcpy, async, async-batch, event or none.
    ///
    /// memcpy writes with pwrite(2). The next three write with io_uring(7): `async` polls for the end of each write,
    /// `async-batch` polls for the end of up to 30 writes, and `event` sleeps until they end. `none` shares blocks between
    /// logs and files. It needs a file system with reflinks, such as XFS or Btrfs, and keeps as much disk space free as the
    /// logs have.
    #[arg(long, env = "FARFORK_VOLUME_COPY", value_name = "METHOD", default_value_t = CopyMethod::default())]
    volume_copy: CopyMethod,
    /// How this node compresses the log data of volumes that it sends to the next replica: off or lz4.
    ///
    /// Short writes, and data that shrinks by less than an eighth, are sent as they are. Each node expands what others send.
    #[arg(long, env = "FARFORK_VOLUME_COMPRESS", value_name = "METHOD", default_value_t = LogCompression::default())]
    volume_compress: LogCompression,
    /// Processes that replicate and publish volumes: on or inline.
    ///
    /// `on` starts an offload process, and another process that writes files. `inline` uses threads of the daemon, as a
    /// baseline for measurements. With `inline`, nothing is replicated while the daemon does not run.
    #[arg(long, env = "FARFORK_VOLUME_OFFLOAD", value_name = "MODE", default_value_t = OffloadMode::default())]
    volume_offload: OffloadMode,
    /// CPU priority of the threads that replicate and publish volumes: normal or idle.
    ///
    /// `idle` (SCHED_IDLE) gives them the CPU time that no other thread wants. While programs use all CPUs, they get only a
    /// small share, about 0.3 % of a CPU, and writes and fsync(2) of the volumes wait for them. A node under load stays in
    /// the chains: the threads that answer within --detect-ms have the ordinary priority.
    #[arg(long, env = "FARFORK_VOLUME_PRIORITY", value_name = "PRIORITY", default_value_t = WorkPriority::default())]
    volume_priority: WorkPriority,
    /// CPUs of the process that replicates volumes, such as 1 or 2-3 [default: all].
    #[arg(long, value_name = "LIST")]
    offload_cpus: Option<String>,
}

impl VolumeServiceArgs {
    /// The names of all options, for options that exclude them.
    pub(crate) const IDS: [&str; 8] = [
        "detect_ms",
        "replica_rate_min",
        "scrub_hours",
        "volume_copy",
        "volume_compress",
        "volume_offload",
        "volume_priority",
        "offload_cpus",
    ];

    /// The configuration of a node's volumes.
    pub(super) fn options(
        self,
        node: &NodeName,
        store: Option<PathBuf>,
        catalog: Option<CatalogLocation>,
    ) -> VolumeOptions {
        VolumeOptions {
            detection_ms: self.detect_ms,
            replica_rate_min: self.replica_rate_min,
            scrub_hours: self.scrub_hours,
            copy_method: self.volume_copy,
            compression: self.volume_compress,
            offload_mode: self.volume_offload,
            work_priority: self.volume_priority,
            offload_cpus: self.offload_cpus,
            ..VolumeOptions::new(node, store, catalog)
        }
    }

    /// Returns the arguments of `farfork node` for these options.
    pub(super) fn node_arguments(&self) -> Vec<String> {
        // Without `..`, so that no option can be missing.
        let Self {
            detect_ms,
            replica_rate_min,
            scrub_hours,
            volume_copy,
            volume_compress,
            volume_offload,
            volume_priority,
            offload_cpus,
        } = self;
        let values = [
            ("--detect-ms", Some(detect_ms.to_string())),
            ("--replica-rate-min", Some(format!("{}KiB", replica_rate_min >> 10))),
            ("--scrub-hours", Some(scrub_hours.to_string())),
            ("--volume-copy", Some(volume_copy.to_string())),
            ("--volume-compress", Some(volume_compress.to_string())),
            ("--volume-offload", Some(volume_offload.to_string())),
            ("--volume-priority", Some(volume_priority.to_string())),
            ("--offload-cpus", offload_cpus.clone()),
        ];
        let arguments = values.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        arguments.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        volumes: VolumeServiceArgs,
    }

    #[test]
    fn the_nodes_of_a_local_cluster_get_each_option() {
        let arguments = [
            "--detect-ms=2500",
            "--replica-rate-min=1MiB",
            "--scrub-hours=7",
            "--volume-copy=event",
            "--volume-compress=lz4",
            "--volume-offload=inline",
            "--volume-priority=idle",
            "--offload-cpus=0-1",
        ];
        let parse = |options: &[&str]| TestCommand::parse_from([&["farfork"], options].concat()).volumes;
        let expected = parse(&arguments);
        for (index, argument) in arguments.iter().enumerate() {
            assert_ne!(parse(&[argument]), parse(&[]), "argument {index} is the default");
        }
        let passed = expected.node_arguments();
        assert_eq!(parse(&passed.iter().map(String::as_str).collect::<Vec<_>>()), expected);
        let command = TestCommand::command();
        let ids: Vec<&str> = command.get_arguments().map(|argument| argument.get_id().as_str()).collect();
        assert_eq!(ids, VolumeServiceArgs::IDS);
    }
}
