//! `farfork cluster deploy` and `undeploy`: install nodes on the hosts of an inventory, and remove them.
//!
//! `host` has the steps on one host, `checks` what must hold before anything is changed. `deploy` and `undeploy` order the
//! steps of all hosts. The part that runs on a host is `commands/remote_node`.

mod checks;
mod deploy;
mod host;
mod outcome;
mod undeploy;

pub(super) use deploy::DeployCluster;
pub(super) use undeploy::UndeployCluster;
