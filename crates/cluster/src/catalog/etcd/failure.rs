//! Errors and alarms of etcd as its user sees them: the cause and the next step. Libraries and etcd give texts only, so errors
//! are recognized by their texts.

use std::error::Error;
use std::path::Path;

use etcd_client::{AlarmMember, AlarmType, Error as EtcdError};

use crate::catalog::location::EtcdLocation;

/// The connection of a failed request.
pub(super) struct FailureContext<'a> {
    /// The URLs of all members.
    pub(super) urls: &'a [String],
    /// The member that was called last.
    pub(super) member: &'a str,
    pub(super) location: &'a EtcdLocation,
    /// The user of the credentials.
    pub(super) user: Option<&'a str>,
    /// Whether the client has a certificate.
    pub(super) has_certificate: bool,
    /// The expired certificate of the client, and the next step.
    pub(super) expired_certificate: Option<String>,
}

impl FailureContext<'_> {
    /// Returns the next step of the user after an error with this text.
    pub(super) fn next_step(&self, reason: &str) -> String {
        if let Some(expired) = &self.expired_certificate {
            return expired.clone();
        }
        let reason = reason.to_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| reason.contains(part));
        let Self { member, location, .. } = self;
        let (directory, prefix) = (self.credentials(), &location.prefix);
        let name = self.user.unwrap_or("USER");
        if has(&["database space exceeded", "nospace"]) {
            return no_space_step(&self.etcdctl(), None);
        }
        if has(&["corrupt cluster"]) {
            return corruption_step(&self.etcdctl(), "MEMBER");
        }
        if has(&["failed to lookup address", "dns error"]) {
            return format!(
                "correct the host name of {member} in --catalog, or add it to the name server or /etc/hosts"
            );
        }
        if let Some(step) = self.tls_step(&reason) {
            return step;
        }
        if has(&["user name is empty"]) {
            return format!(
                "etcd wants a user: write the files `user` and `password` to {directory}, and restart the daemon"
            );
        }
        if has(&["authentication is not enabled"]) {
            return format!(
                "etcd knows no users: remove the files `user` and `password` from {directory} and restart the daemon, or enable them: \
                 `{} auth enable`",
                self.etcdctl()
            );
        }
        if has(&["authentication failed", "invalid user id or password"]) {
            return format!("correct the files `user` and `password` of {directory}, and restart the daemon");
        }
        if has(&["permission denied"]) {
            let etcdctl = self.etcdctl();
            return format!(
                "let the user read and write the keys of the prefix: `{etcdctl} role add farfork`, `{etcdctl} role grant-permission \
                 farfork --prefix=true readwrite {prefix}/` and `{etcdctl} user grant-role {name} farfork`"
            );
        }
        if has(&["no leader"]) {
            return format!(
                "most members of etcd do not run, or do not reach each other: `{} endpoint status --cluster`",
                self.etcdctl()
            );
        }
        format!("see whether most members run: `{} endpoint status`", self.etcdctl())
    }

    /// The next step after an error of TLS, or of a connection that only one side encrypts.
    fn tls_step(&self, reason: &str) -> Option<String> {
        let has = |parts: &[&str]| parts.iter().any(|part| reason.contains(part));
        let (member, directory) = (self.member, self.credentials());
        // A member that refuses the client, or its protocol, closes the connection, as one that ends does.
        let is_closed =
            has(&["broken pipe", "connection reset", "connection closed", "handshake eof", "frame with invalid size"]);
        let otherwise = format!("if not, see whether it runs: `{} endpoint status`", self.etcdctl());
        if !self.location.uses_tls {
            let step = || format!("if {member} uses TLS, name it with etcds:// in --catalog; {otherwise}");
            return is_closed.then(step);
        }
        let plain = format!("if {member} does not use TLS, name it with etcd:// in --catalog");
        let certificate = if self.has_certificate {
            format!("let the authority of its --trusted-ca-file sign `client.pem` of {directory}")
        } else {
            format!("write `client.pem` and `client.key` to {directory}, and restart the daemon")
        };
        Some(if has(&["invalidcontenttype", "corrupt message"]) {
            plain
        } else if is_closed {
            format!("{plain}; if it refuses this client, {certificate}; {otherwise}")
        } else if has(&["received fatal alert"]) {
            format!("{member} refuses this client: {certificate}")
        } else if has(&["unknownissuer", "badsignature"]) {
            format!(
                "write the authority that has signed the certificate of {member} to `ca.pem` of {directory}, and restart the daemon"
            )
        } else if has(&["peer certificate: expired", "certificate expired"]) {
            format!("renew the certificate of {member} (--cert-file of etcd), or correct the clock of this machine")
        } else if has(&["notvalidforname", "not valid for name"]) {
            format!("name {member} in --catalog as its certificate does, or give it a certificate with this name")
        } else if has(&["notvalidyet", "not valid yet"]) {
            format!("correct the clock of this machine, or renew the certificate of {member}")
        } else {
            return None;
        })
    }

    fn credentials(&self) -> String {
        let directory = self.location.credentials.as_deref().map(Path::display);
        directory
            .map_or_else(|| "DIR, and name it with ?credentials=DIR in --catalog".to_owned(), |path| path.to_string())
    }

    fn etcdctl(&self) -> String {
        etcdctl(self.urls)
    }
}

/// Describes an alarm of etcd, with the next step. `revision` is the present one, if it is known.
pub(super) fn describe_alarm(alarm: &AlarmMember, revision: Option<i64>, urls: &[String]) -> Option<String> {
    let (etcdctl, member) = (etcdctl(urls), format!("{:x}", alarm.member_id()));
    match alarm.alarm() {
        AlarmType::None => None,
        AlarmType::Nospace => Some(format!(
            "etcd has the alarm NOSPACE, because member {member} has used its space: {}",
            no_space_step(&etcdctl, revision)
        )),
        AlarmType::Corrupt => Some(format!(
            "etcd has the alarm CORRUPT, because the data of member {member} differs: {}",
            corruption_step(&etcdctl, &member)
        )),
    }
}

fn no_space_step(etcdctl: &str, revision: Option<i64>) -> String {
    let revision = revision.map_or_else(|| "REVISION".to_owned(), |revision| revision.to_string());
    format!(
        "run `{etcdctl} compact {revision}`, `{etcdctl} defrag` and `{etcdctl} alarm disarm` (`{etcdctl} endpoint status -w json` shows the \
         revision), or start etcd with a larger --quota-backend-bytes"
    )
}

fn corruption_step(etcdctl: &str, member: &str) -> String {
    format!(
        "replace the member (`{etcdctl} alarm list`): run `{etcdctl} member remove {member}`, add it again with an empty data \
         directory, and run `{etcdctl} alarm disarm`"
    )
}

fn etcdctl(urls: &[String]) -> String {
    format!("etcdctl --endpoints={}", urls.join(","))
}

/// Converts an error to text with its causes.
pub(super) fn error_text(error: &EtcdError) -> String {
    match error {
        EtcdError::GRpcStatus(status) => {
            let (message, causes) = (status.message(), status.source().map(causes_text).unwrap_or_default());
            let text = if causes.contains(message) { causes } else { message.to_owned() };
            format!("{:?}: {text}", status.code())
        }
        EtcdError::TransportError(error) => causes_text(error),
        error => error.to_string(),
    }
}

/// The texts of an error and its causes. A text that its cause repeats is left out.
fn causes_text(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> =
        std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect();
    let is_new = |index: &usize| texts.get(index + 1).is_none_or(|cause| !cause.contains(&texts[*index]));
    (0..texts.len()).filter(is_new).map(|index| texts[index].as_str()).collect::<Vec<_>>().join(": ")
}
