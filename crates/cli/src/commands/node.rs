//! `farfork node`: the daemon.

use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use farfork_node::daemon;
use farfork_node::limits::ZYGOTES_MAX_DEFAULT;
use farfork_node::options::{CACHED_ROOTS_MAX_DEFAULT, Options, SeedBudget, TrustOptions, USER_RANGES_DEFAULT};
use farfork_node::run_dir::DEFAULT_RUN_DIR;
use farfork_sys::allocator;
use farfork_trust::{Encryption, JoinToken, read_private};
use farfork_wire::NodeName;
use zeroize::Zeroizing;

use crate::connection::parse_address;
use crate::log::{self, LogOptions};
use crate::size::parse_size;
use crate::{GlobalArgs, privilege};

/// More than a token's file has, in bytes.
const TOKEN_BYTES_MAX: u64 = 1024;

/// How long a thread for what blocks stays without work. They take turns, so that a call every half second keeps all of them that were
/// started within that time: with the runtime's 10 s, twenty, each with a stack and a heap of its own.
const BLOCKING_THREAD_KEEPALIVE: Duration = Duration::from_secs(2);

/// Run this machine's daemon, until SIGTERM or SIGINT.
///
/// Stopped like that, it ends its children and drops its seeds. When it is killed, its seeds end with it; its children
/// go on, and the next daemon of the same run directory finds them.
///
/// Nodes show each other certificates of their cluster, and let nobody else in. Who this node is stands in the directory
/// --trust; where nothing stands there, it joins a cluster with a token, or makes a cluster of its own.
#[derive(Args)]
#[command(after_help = "\
Examples:
  farfork node --name n1 --listen 10.0.0.1:7400
  (umask 077; farfork cluster token > join.token)           there, and carried here
  farfork node --name n2 --listen 10.0.0.2:7400 --join 10.0.0.1:7400 --token-file join.token

Exit status: 0 stopped by a signal, 1 it could not start or go on, 2 wrong usage.")]
pub(crate) struct Node {
    /// The node's name, unique in its cluster: a-z, 0-9 and `-`.
    #[arg(long)]
    name: NodeName,
    /// Directory for sockets and for what children write; nobody else may use it.
    #[arg(long, env = "FARFORK_RUN_DIR", default_value = DEFAULT_RUN_DIR, value_name = "DIR")]
    run_dir: PathBuf,
    /// Where its control API listens; port 0 for any free one.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    listen: SocketAddr,
    /// Port of its memory server, on the same address; 0 for any free one [default: the one behind that of --listen].
    #[arg(long, value_name = "PORT")]
    fabric_port: Option<u16>,
    /// A node whose cluster it joins. Can be repeated: one that answers is enough.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_address)]
    join: Vec<SocketAddr>,
    /// File with the join token, readable for its owner alone, or `-` for standard input; needed once, when --trust has no
    /// identity yet.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    token_file: Option<PathBuf>,
    /// Whether what goes between nodes' memories is encrypted; `off` where both ends say so. They authenticate each other
    /// either way.
    #[arg(long, value_name = "on|off", default_value = "on")]
    encryption: Encryption,
    /// Authenticate nobody and encrypt nothing: whoever reaches this node's ports may do everything.
    #[arg(long)]
    insecure: bool,
    /// Containers that it keeps ready for children.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pool: usize,
    /// Zygotes that it keeps at most: copies of seeds that were forked here, from which further children are forked, each
    /// with up to 16 MiB of memory; 0 for none.
    #[arg(long, value_name = "N", default_value_t = ZYGOTES_MAX_DEFAULT)]
    zygotes: usize,
    /// Roots of children that have ended which it keeps at most, for further children of the same seed: those in which the child before
    /// has left nothing; 0 for none.
    #[arg(long, value_name = "N", default_value_t = CACHED_ROOTS_MAX_DEFAULT)]
    kept_roots: usize,
    /// Most memory that it keeps pages in for children of the strategy `cache`, like 512MiB; 0 for none.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    cache: u64,
    /// Most memory that the templates of this node's seeds may come to hold, like 8GiB: a prepare beyond that is refused
    /// [default: no bound].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    seed_memory: Option<u64>,
    /// The same for the seeds of processes of one user [default: no bound].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    seed_memory_per_user: Option<u64>,
    /// Most memory that children with --memory may use together: a fork beyond that is refused [default: what the machine
    /// has].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    child_memory: Option<u64>,
    /// Serve metrics for Prometheus at http://IP:PORT/metrics, to whoever can reach it; a port alone is one of 127.0.0.1
    /// [default: none].
    #[arg(long, value_name = "[IP:]PORT", value_parser = parse_metrics)]
    metrics: Option<SocketAddr>,
    /// Directory for the images of sealed seeds; one on a disk outlives the machine's restart [default: below the run
    /// directory].
    #[arg(long, env = "FARFORK_IMAGES", value_name = "DIR")]
    images: Option<PathBuf>,
    /// File by whose locks the nodes of this machine know which users children with --user-namespace have: the same for all of
    /// them; made where it is missing, and left.
    #[arg(long, env = "FARFORK_USER_RANGES", default_value = USER_RANGES_DEFAULT, value_name = "FILE")]
    user_ranges: PathBuf,
    /// Lead all children from their parent's vdso to the one here, as between kernels of different builds: to try that on one.
    #[arg(long)]
    bridge_vdso: bool,
    /// Take the processor of the node of that name to have these components of extended state (XCR0): to try processors that differ.
    #[arg(long, hide = true, value_name = "NODE=MASK", value_parser = parse_xcr0)]
    xcr0: Option<(String, u64)>,
    #[command(flatten)]
    log: LogOptions,
}

impl Node {
    pub(crate) fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        privilege::require_root("it traces processes, and makes namespaces and control groups")?;
        log::start_logging(&self.log)?;
        // Always the same port by default, so that a daemon that was started again is known to be another.
        let behind = if self.listen.port() == 0 { 0 } else { self.listen.port().wrapping_add(1) };
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let xcr0 = self.xcr0.filter(|(name, _)| *name == self.name.as_str()).map(|(_, mask)| mask);
        let options = Options {
            name: self.name,
            run_dir: self.run_dir,
            listen: self.listen,
            fabric_port: self.fabric_port.unwrap_or(behind),
            join: self.join,
            pool_size: self.pool,
            zygotes_max: self.zygotes,
            kept_roots_max: self.kept_roots,
            cache_bytes_max: self.cache,
            seed_budget: SeedBudget { bytes_max: self.seed_memory, user_bytes_max: self.seed_memory_per_user },
            child_memory_bytes_max: self.child_memory,
            metrics: self.metrics,
            images: self.images,
            user_ranges: self.user_ranges,
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
        // No more threads than that run at once; those that wait need no pool of free memory of their own.
        allocator::limit_arenas(thread::available_parallelism().map_or(1, usize::from));
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().thread_keep_alive(BLOCKING_THREAD_KEEPALIVE).build()?;
        runtime.block_on(daemon::run(options)).context(object)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A secret comes from a file that nobody else can read, or from a pipe: a command line can be read by everybody.
fn read_token(path: &Path) -> anyhow::Result<JoinToken> {
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

/// A port alone is of this machine only: the metrics have no authentication.
fn parse_metrics(text: &str) -> Result<SocketAddr, String> {
    let local = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local.or_else(|_| text.parse()).map_err(|_| "write it like 9470 or 10.0.0.1:9470".to_owned())
}

/// `NODE=MASK`, the mask in hexadecimal.
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
    fn a_port_alone_is_not_open_to_others() {
        assert!(parse_metrics("9470").unwrap().ip().is_loopback());
        assert_eq!(parse_metrics("10.0.0.1:9470").unwrap().to_string(), "10.0.0.1:9470");
        assert!(parse_metrics("example:9470").is_err());
    }
}
