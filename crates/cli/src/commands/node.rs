//! `farfork node`: the daemon.

use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use farfork_api::limits::{ZYGOTE_IDLE_DEFAULT, ZYGOTES_MAX_DEFAULT};
use farfork_cluster::catalog::CatalogLocation;
use farfork_node::daemon;
use farfork_node::options::{CACHED_ROOTS_MAX_DEFAULT, Options, SeedBudget, TrustOptions, USER_RANGES_DEFAULT};
use farfork_sys::allocator;
use farfork_terminal::privilege;
use farfork_trust::{Encryption, JoinToken, read_private};
use farfork_wire::NodeName;
use zeroize::Zeroizing;

use super::volume_service::VolumeServiceArgs;
use crate::GlobalArgs;
use crate::connection::parse_address;
use crate::log::{self, LogOptions};
use crate::size::parse_size;

/// Maximum size of a token file, in bytes.
const TOKEN_BYTES_MAX: u64 = 1024;

/// Time after which an idle thread for blocking calls ends. Calls use the idle threads in turn. So with a call every
/// half second, tokio's default of 10 s would keep up to twenty threads alive, each with a stack and a heap.
const BLOCKING_THREAD_KEEPALIVE: Duration = Duration::from_secs(2);

/// Run the daemon of a node until SIGTERM or SIGINT.
///
/// On SIGTERM or SIGINT, the daemon kills its children and drops its seeds. If the daemon crashes or is killed, its
/// seeds are lost, but its children keep running. The next daemon of the same run directory takes them over. Sealed
/// seeds survive in both cases.
///
/// Nodes authenticate each other with certificates of their cluster. The node's identity is in the directory --trust.
/// `farfork cluster init` creates a cluster, and the identity of its first node. Any other node needs --join and
/// --token-file at its first start. Later, it finds the other nodes by itself.
///
/// Each daemon of a machine needs a directory of its own for its sockets, its logs and the output of children (--run-dir).
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork cluster init --name n1                            once, on the first machine
  farfork node --name n1 --listen 10.0.0.1:7400
  (umask 077; farfork cluster token > join.token)           on n1; copy the file to n2
  farfork node --name n2 --listen 10.0.0.2:7400 --join 10.0.0.1:7400 --token-file join.token

Exit status: 0 stopped by a signal, 1 the daemon could not start or continue, 2 wrong usage.")]
pub(crate) struct Node {
    /// Name of the node, unique in the cluster: a letter, then up to 62 of a-z, 0-9 and `-`.
    #[arg(long)]
    name: NodeName,
    /// Address of the control API; port 0 selects a free port.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    listen: SocketAddr,
    /// Port of the memory server, at the address of --listen; 0 selects a free port [default: the port of --listen
    /// plus 1].
    #[arg(long, value_name = "PORT")]
    fabric_port: Option<u16>,
    /// Address of a node of the cluster to join. Can be repeated; one node that answers is enough.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    join: Vec<SocketAddr>,
    /// File with the join token, or `-` for standard input.
    ///
    /// The token is needed once, while --trust has no identity. Only the file's owner may have access to it.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    token_file: Option<PathBuf>,
    /// Encrypt memory transfers between nodes.
    ///
    /// `off` takes effect between two nodes that both set it. The nodes authenticate each other in either case.
    #[arg(long, value_name = "on|off", default_value = "on")]
    encryption: Encryption,
    /// Disable authentication and encryption. Any host that can reach this node's ports has full control of the node.
    #[arg(long)]
    insecure: bool,
    /// Number of containers to keep ready for children.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pool: usize,
    /// Maximum number of zygotes; 0 for none.
    ///
    /// A zygote is a process with up to 32 MiB of a seed's memory. Further children of the seed are forked from it,
    /// which is faster than a restore.
    #[arg(long, value_name = "N", default_value_t = ZYGOTES_MAX_DEFAULT)]
    zygotes: usize,
    /// Time without a fork after which a zygote ends, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = ZYGOTE_IDLE_DEFAULT.as_secs(), value_parser = clap::value_parser!(u64).range(1..=86_400))]
    zygote_idle: u64,
    /// Maximum number of root file systems of ended children to keep for reuse; 0 for none.
    ///
    /// A further child of the same parent can use such a root, if the previous child left it unchanged.
    #[arg(long, value_name = "N", default_value_t = CACHED_ROOTS_MAX_DEFAULT)]
    kept_roots: usize,
    /// Maximum memory of the page cache, such as 512MiB; 0 for none.
    ///
    /// The cache keeps pages of other nodes' seeds, for children with `--strategy cache` and for `farfork prewarm`.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    cache: u64,
    /// Maximum memory that all seeds of this node may hold, such as 8GiB [default: unlimited].
    ///
    /// A prepare that could exceed the limit is refused. A seed counts as the memory that its parent had at prepare,
    /// the most that it can hold. Sealed seeds and seeds of `prepare --freeze` do not count.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    seed_memory: Option<u64>,
    /// Maximum memory that the seeds of one user's processes may hold, such as 2GiB [default: unlimited].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    seed_memory_per_user: Option<u64>,
    /// Maximum sum of the --memory limits of all running children, such as 16GiB [default: the machine's memory].
    ///
    /// A fork that would exceed the limit is refused. Children without --memory do not count.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    child_memory: Option<u64>,
    /// Serve Prometheus metrics at http://IP:PORT/metrics [default: no metrics].
    ///
    /// A port without an address listens at 127.0.0.1. Requests are not authenticated.
    #[arg(long, value_name = "[IP:]PORT", value_parser = parse_metrics)]
    metrics: Option<SocketAddr>,
    /// Directory for the images of sealed seeds [default: a directory in the run directory].
    ///
    /// Images survive a reboot only in a directory on disk. The run directory is usually in memory.
    #[arg(long, env = "FARFORK_IMAGES", value_name = "DIR")]
    images: Option<PathBuf>,
    /// File whose locks reserve user ids for children with --user-namespace.
    ///
    /// All nodes of a machine must use the same file. A missing file is created. The file is never removed.
    #[arg(long, env = "FARFORK_USER_RANGES", default_value = USER_RANGES_DEFAULT, value_name = "FILE")]
    user_ranges: PathBuf,
    /// Directory for replicas of volumes [default: /var/lib/farfork/NAME/volumes].
    ///
    /// The file system must support trusted extended attributes, as ext4, XFS, Btrfs and tmpfs do.
    #[arg(long, value_name = "DIR")]
    volumes: Option<PathBuf>,
    /// File or etcd cluster in which the nodes agree on volumes [default: the one of `farfork cluster init --catalog`, or else the
    /// file catalog, next to the directory of --volumes].
    ///
    /// All nodes of a cluster that share volumes must reach the same catalog. A missing file is created. For etcd 3.4 or later:
    /// etcd://HOST:PORT,HOST:PORT/PREFIX, or etcds:// for TLS. The default prefix is /farfork. `?credentials=DIR` after it
    /// names a directory with the files user and password, or ca.pem, client.pem and client.key.
    #[arg(long, value_name = "FILE|URL")]
    catalog: Option<CatalogLocation>,
    #[command(flatten)]
    volume_service: VolumeServiceArgs,
    /// Redirect the parent's vDSO functions to this kernel's in all children, even if both kernels are the same. For
    /// tests.
    #[arg(long)]
    bridge_vdso: bool,
    /// Pretend that the processor of node NODE has the extended state components MASK (XCR0). For tests.
    #[arg(long, hide = true, value_name = "NODE=MASK", value_parser = parse_xcr0)]
    xcr0: Option<(String, u64)>,
    #[command(flatten)]
    log: LogOptions,
}

/// The port of the memory server of a daemon that listens at `control`; 0 for any. A fixed port by default, so that other
/// nodes recognize a restarted daemon as a new process.
pub(super) fn default_fabric_port(control: SocketAddr) -> u16 {
    if control.port() == 0 { 0 } else { control.port().wrapping_add(1) }
}

impl Node {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces processes, and makes namespaces and control groups")?;
        log::start_logging(&self.log)?;
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let xcr0 = self.xcr0.filter(|(name, _)| *name == self.name.as_str()).map(|(_, mask)| mask);
        let volumes = self.volume_service.options(&self.name, self.volumes, self.catalog);
        let options = Options {
            name: self.name,
            run_dir: global.connection.run_dir().to_owned(),
            listen: self.listen,
            fabric_port: self.fabric_port.unwrap_or(default_fabric_port(self.listen)),
            join: self.join,
            pool_size: self.pool,
            zygotes_max: self.zygotes,
            zygote_idle_max: Duration::from_secs(self.zygote_idle),
            kept_roots_max: self.kept_roots,
            cache_bytes_max: self.cache,
            seed_budget: SeedBudget { bytes_max: self.seed_memory, user_bytes_max: self.seed_memory_per_user },
            child_memory_bytes_max: self.child_memory,
            metrics: self.metrics,
            images: self.images,
            user_ranges: self.user_ranges,
            volumes,
            bridges_vdso: self.bridge_vdso,
            xcr0,
            trust: TrustOptions {
                directory: global.trust().root().to_owned(),
                encryption: self.encryption,
                token,
                insecure: self.insecure,
            },
        };
        let object = format!("node {}", options.name);
        // At most as many threads as CPUs run at once, so more malloc arenas than CPUs are useless.
        allocator::limit_arenas(thread::available_parallelism().map_or(1, usize::from));
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().thread_keep_alive(BLOCKING_THREAD_KEEPALIVE).build()?;
        runtime.block_on(daemon::run(options)).context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads the join token from a file that only its owner can read, or from standard input. A token on the command line
/// would be visible to all users.
pub(super) fn read_token(path: &Path) -> anyhow::Result<JoinToken> {
    let object = || format!("token file {}", path.display());
    let bytes = if path == Path::new("-") {
        let mut bytes = Zeroizing::new(Vec::new());
        io::stdin().take(TOKEN_BYTES_MAX).read_to_end(&mut bytes).with_context(object)?;
        bytes
    } else {
        read_private(path, TOKEN_BYTES_MAX).context("join token")?
    };
    std::str::from_utf8(&bytes).with_context(object)?.parse().with_context(object)
}

/// Parses an address and port. A port without an address means 127.0.0.1, because metrics requests are not
/// authenticated.
fn parse_metrics(text: &str) -> Result<SocketAddr, String> {
    let local = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local.or_else(|_| text.parse()).map_err(|_| "write it like 9470 or 10.0.0.1:9470".to_owned())
}

/// Parses `NODE=MASK`. The mask is hexadecimal.
fn parse_xcr0(text: &str) -> Result<(String, u64), String> {
    let malformed = || format!("`{text}` is not NODE=0xMASK");
    let (name, mask) = text.split_once("=0x").ok_or_else(malformed)?;
    Ok((name.to_owned(), u64::from_str_radix(mask, 16).map_err(|_| malformed())?))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::{parse_metrics, read_token};

    #[test]
    fn a_token_that_others_can_read_is_not_used() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("join.token");
        fs::write(&file, format!("farfork-join-1.{:032x}.{:064x}\n", 1, 2)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let refused = format!("{:#}", read_token(&file).unwrap_err());
        assert!(refused.contains("mode 644") && refused.contains("chmod go= "), "{refused}");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        read_token(&file).unwrap();
    }

    #[test]
    fn a_port_without_address_is_bound_to_loopback() {
        assert!(parse_metrics("9470").unwrap().ip().is_loopback());
        assert_eq!(parse_metrics("10.0.0.1:9470").unwrap().to_string(), "10.0.0.1:9470");
        assert!(parse_metrics("example:9470").is_err());
    }
}
