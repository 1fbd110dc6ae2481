//! Errors of connections and of commands on hosts. Each names the host.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why something on a host failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// ssh(1) or its files cannot be used on this machine.
    #[error("cannot {action}: {cause}")]
    Local {
        /// The operation.
        action: &'static str,
        /// The error.
        cause: io::Error,
    },
    /// A file of this machine cannot be read.
    #[error("file {}: {cause}", path.display())]
    LocalFile {
        /// The file.
        path: PathBuf,
        /// The error.
        cause: io::Error,
    },
    /// There is no connection.
    #[error("host {host}: no connection to {address}: {detail}")]
    Unreachable {
        /// The host.
        host: String,
        /// Its address.
        address: String,
        /// The messages of ssh.
        detail: String,
    },
    /// The host, or a host on the way to it, has an unknown or a changed key.
    #[error("host {host}: {}", key_text(address, *.is_changed, detail))]
    HostKey {
        /// The host.
        host: String,
        /// Its address.
        address: String,
        /// Whether the file of known hosts has another key.
        is_changed: bool,
        /// The messages of ssh.
        detail: String,
    },
    /// The host refuses the user.
    #[error(
        "host {host}: {address} refuses the login: {detail}; add the key to the agent or name it in the inventory, and add \
         its public part to `authorized_keys` on the host"
    )]
    Login {
        /// The host.
        host: String,
        /// Its address.
        address: String,
        /// The messages of ssh.
        detail: String,
    },
    /// The shell of the user prints text before each command, which would be taken for output of the command.
    #[error(
        "host {host}: the start-up files of the user's shell print {text:?} before each command; let them print only if the shell is \
         interactive"
    )]
    ShellOutput {
        /// The host.
        host: String,
        /// The text.
        text: String,
    },
    /// The host did not run a command in time.
    #[error(
        "host {host}: {address} did not run a command within {} s (`connect_timeout_s` of the inventory); check that it is up, \
         and that `ssh {address} true` ends in that time",
        limit.as_secs()
    )]
    Timeout {
        /// The host.
        host: String,
        /// Its address.
        address: String,
        /// The limit.
        limit: Duration,
    },
    /// The connection ended.
    #[error("host {host}: the connection ended: {detail}")]
    Disconnected {
        /// The host.
        host: String,
        /// The messages of ssh.
        detail: String,
    },
    /// A command on the host failed.
    #[error("host {host}: cannot {action}: {detail}")]
    Command {
        /// The host.
        host: String,
        /// The operation.
        action: String,
        /// The output of the command, or its exit status.
        detail: String,
    },
    /// An argument cannot be passed to a program.
    #[error("host {host}: `{}` {rule}", argument.escape_debug())]
    Argument {
        /// The host.
        host: String,
        /// The argument.
        argument: String,
        /// The rule, as a clause.
        rule: &'static str,
    },
    /// A path has an object that no coordinator has copied there.
    #[error(
        "host {host}: {path} was not made by `farfork bench run`, so it is neither replaced nor removed; name another path in \
         the plan (`to`), or move it away if it is of no use"
    )]
    Foreign {
        /// The host.
        host: String,
        /// The path.
        path: String,
    },
    /// Another coordinator uses the host.
    #[error("host {host}: another coordinator uses it: {holder}; wait for its end, or end it")]
    Locked {
        /// The host.
        host: String,
        /// The other coordinator, as it describes itself.
        holder: String,
    },
}

fn key_text(address: &str, is_changed: bool, detail: &str) -> String {
    if is_changed {
        return changed_key_text(address, detail);
    }
    format!(
        "the key of {address} is not in the file of known hosts: {detail}; compare its key with the host's, then add it: \
         `farfork cluster deploy --accept-new-host-keys` does so, or ssh-keyscan(1)"
    )
}

/// Has only the facts of ssh's long message: the key that the host sends, and the place of the other one. Has all of the message
/// if it lacks one of them, as for a revoked key.
fn changed_key_text(address: &str, detail: &str) -> String {
    let messages = || detail.split("; ");
    let fingerprint =
        messages().find_map(|message| message.starts_with("SHA256:").then(|| message.trim_end_matches('.')));
    let place = messages().find_map(|message| message.strip_prefix("Offending ")?.split_once(" key in "));
    match (fingerprint, place) {
        (Some(fingerprint), Some((_, place))) => format!(
            "the key of {address} has changed: the host sends {fingerprint}, but {place} has another key; compare it with \
             the host's (`ssh-keygen -l -f` with its public key there), then correct the file"
        ),
        _ => format!(
            "the key of {address} is not the one in the file of known hosts: {detail}; compare its key with the host's, then \
             correct the file"
        ),
    }
}
