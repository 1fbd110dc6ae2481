//! The connection to one member of etcd at a time. When a request fails, it is repeated with the next member.

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use etcd_client::{AlarmMember, Client, ConnectOptions, Error as EtcdError, WatchOptions};
use tokio::runtime::{self, Runtime};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::WatchedChanges;
use super::credentials::EtcdCredentials;
use super::failure::{FailureContext, describe_alarm, error_text};
use crate::catalog::location::EtcdLocation;

/// Time limit of one attempt. A member that does not answer is as good as dead.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait before the first member is tried again.
const RETRY_WAIT: Duration = Duration::from_millis(100);

/// Connections to the members of an etcd cluster.
#[derive(Debug)]
pub(super) struct EtcdConnection {
    members: Arc<EtcdMembers>,
    /// `None` only while this value is dropped.
    runtime: Option<Runtime>,
}

/// The members, and the client of the one that answered last.
struct EtcdMembers {
    location: EtcdLocation,
    urls: Vec<String>,
    credentials: EtcdCredentials,
    /// Time limit of a request, with all attempts.
    request_timeout: Duration,
    present: Mutex<PresentMember>,
}

#[derive(Default)]
struct PresentMember {
    index: usize,
    client: Option<Client>,
}

/// The reply to a request.
pub(super) struct EtcdReply<T> {
    pub(super) reply: T,
    /// An earlier attempt had no reply, so it may have been executed.
    pub(super) was_repeated: bool,
}

impl std::fmt::Debug for EtcdMembers {
    /// Leaves out the credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdMembers").field("urls", &self.urls).finish_non_exhaustive()
    }
}

impl EtcdConnection {
    /// Reads the credentials. Connects with the first request.
    ///
    /// # Errors
    /// When a file of the credentials cannot be read.
    pub(super) fn open(location: &EtcdLocation, request_timeout: Duration) -> io::Result<Self> {
        let scheme = if location.uses_tls { "https" } else { "http" };
        let urls = location.members.iter().map(|member| format!("{scheme}://{member}")).collect();
        let (credentials, present) = (EtcdCredentials::read(location)?, Mutex::default());
        let members = EtcdMembers { location: location.clone(), urls, credentials, request_timeout, present };
        let runtime =
            runtime::Builder::new_multi_thread().worker_threads(1).thread_name("etcd").enable_all().build()?;
        Ok(Self { members: Arc::new(members), runtime: Some(runtime) })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("only drop takes it")
    }

    /// Makes a request, and repeats it with other members. Blocks the calling thread, which may belong to another runtime.
    ///
    /// # Errors
    /// When no member has answered within the time limit, or one has refused the request.
    pub(super) fn call<T, F>(&self, request: impl Fn(Client) -> F + Send + Sync + 'static) -> io::Result<EtcdReply<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, EtcdError>> + Send,
    {
        let (sender, receiver) = mpsc::sync_channel(1);
        let members = Arc::clone(&self.members);
        self.runtime().spawn(async move {
            let _ = sender.send(members.request(request).await);
        });
        receiver.recv().map_err(|_| io::Error::other("the thread of etcd has ended"))?
    }

    pub(super) fn describe_alarm(&self, alarm: &AlarmMember, revision: Option<i64>) -> Option<String> {
        describe_alarm(alarm, revision, &self.members.urls)
    }

    /// Reports changes of keys that begin with `prefix`, until this value is dropped.
    pub(super) fn watch(&self, prefix: String, changes: Arc<WatchedChanges>) {
        let members = Arc::clone(&self.members);
        self.runtime().spawn(async move {
            loop {
                let member = members.present_index();
                if let Err(error) = members.watch(member, &prefix, &changes).await {
                    tracing::debug!(error = error_text(&error), "the watch of the catalog is started again");
                }
                members.use_next_after(member);
                sleep(RETRY_WAIT).await;
            }
        });
    }
}

impl Drop for EtcdConnection {
    /// Does not wait: the last owner may be a thread of another runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl EtcdMembers {
    async fn request<T, F>(&self, request: impl Fn(Client) -> F) -> io::Result<EtcdReply<T>>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let deadline = Instant::now() + self.request_timeout;
        let mut was_repeated = false;
        let mut failed_members = 0;
        loop {
            let index = self.present_index();
            let (member, attempt) = (&self.urls[index], async { request(self.client(index).await?).await });
            let reason = match timeout(ATTEMPT_TIMEOUT, attempt).await {
                Ok(Ok(reply)) => return Ok(EtcdReply { reply, was_repeated }),
                Ok(Err(error)) if !may_be_repeated(&error) => {
                    let reason = error_text(&error);
                    return Err(io::Error::other(format!("{member}: {reason}: {}", self.next_step(member, &reason))));
                }
                Ok(Err(error)) => error_text(&error),
                Err(_) => format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs()),
            };
            was_repeated = true;
            self.use_next_after(index);
            failed_members += 1;
            if Instant::now() >= deadline {
                let (limit_s, next_step) = (self.request_timeout.as_secs(), self.next_step(member, &reason));
                let text = format!("no member has answered within {limit_s} s; {member}: {reason}: {next_step}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            if failed_members % self.urls.len() == 0 {
                sleep(RETRY_WAIT).await;
            }
        }
    }

    /// Returns when the watch has ended.
    async fn watch(&self, member: usize, prefix: &str, changes: &WatchedChanges) -> Result<(), EtcdError> {
        let mut client = self.client(member).await?;
        let mut stream = client.watch(prefix, Some(WatchOptions::new().with_prefix())).await?;
        while let Some(answer) = stream.message().await? {
            // The first answer says that the watch has begun. Changes before it were not reported.
            if let Some(header) = answer.header() {
                changes.report(header.revision());
            }
            if answer.canceled() {
                break;
            }
        }
        Ok(())
    }

    /// The client of a member. Connects if there is none.
    async fn client(&self, index: usize) -> Result<Client, EtcdError> {
        {
            let present = self.lock();
            if let Some(client) = present.client.as_ref().filter(|_| present.index == index) {
                return Ok(client.clone());
            }
        }
        let client = Client::connect([&self.urls[index]], Some(self.connect_options())).await?;
        let mut present = self.lock();
        if present.index == index {
            present.client = Some(client.clone());
        }
        Ok(client)
    }

    /// Continues with the next member after one has failed, unless another request has already done so.
    fn use_next_after(&self, failed: usize) {
        let mut present = self.lock();
        if present.index == failed {
            *present = PresentMember { index: (failed + 1) % self.urls.len(), client: None };
        }
    }

    fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .with_connect_timeout(ATTEMPT_TIMEOUT)
            .with_keep_alive(ATTEMPT_TIMEOUT, ATTEMPT_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        self.credentials.add_to(options)
    }

    /// Returns the next step of the user after a failed request to a member.
    fn next_step(&self, member: &str, reason: &str) -> String {
        let (location, expired_certificate) = (&self.location, self.credentials.expired_certificate());
        let (user, has_certificate) = (self.credentials.user_name(), self.credentials.has_certificate());
        FailureContext { urls: &self.urls, member, location, user, has_certificate, expired_certificate }
            .next_step(reason)
    }

    fn present_index(&self) -> usize {
        self.lock().index
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, PresentMember> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether another attempt, or another member, may succeed. An expired token is replaced with a new connection.
fn may_be_repeated(error: &EtcdError) -> bool {
    match error {
        EtcdError::GRpcStatus(status) => match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | Code::Cancelled | Code::Internal => true,
            Code::Unauthenticated => status.message().contains("token"),
            _ => false,
        },
        EtcdError::TransportError(_) | EtcdError::IoError(_) => true,
        _ => false,
    }
}
