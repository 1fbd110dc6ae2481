//! Validates the document of an inventory.

use std::env;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_sys::affinity::parse_cpu_list;
use farfork_wire::NodeName;
use toml::Spanned;

use super::document::{HostDefaults, HostDocument, InstallDocument, InventoryDocument};
use super::error::{InventoryError, SourceText, toml_error_text};
use super::{CONNECT_TIMEOUT_DEFAULT, GROUP_ALL, InstallSettings, Inventory, InventoryHost, TrafficEndpoint, groups};

/// Longest name of a host in the domain name system, in bytes.
const ADDRESS_BYTES_MAX: usize = 253;

/// Longest name of a user, in bytes (useradd(8)).
const USER_BYTES_MAX: usize = 32;

/// Longest name of an interface, in bytes (IFNAMSIZ without the final zero).
const INTERFACE_BYTES_MAX: usize = 15;

/// Longest limit on connecting, in seconds.
const CONNECT_TIMEOUT_S_MAX: u64 = 600;

/// Defaults of `[install]`: those of `farfork node`.
const INSTALL_DEFAULT: [&str; 4] = ["/usr/local", "/run/farfork", "/etc/farfork", "/var/log/farfork.log"];
const PORT_DEFAULT: u16 = 7400;
const CLUSTER_DEFAULT: &str = "farfork";

const PATH_RULE: &str = "an absolute path below / of letters, digits and ._-+/";
const OWN_PATH_RULE: &str =
    "an absolute path of letters, digits and ._-+/ whose last part contains `farfork`: undeploy removes it";

/// Validates the text of an inventory.
pub(super) fn validate(file: &Path, text: &str) -> Result<Inventory, InventoryError> {
    let source = SourceText { file, text };
    let document: InventoryDocument =
        toml::from_str(text).map_err(|error| source.error(error.span().unwrap_or(0..0), toml_error_text(&error)))?;
    let mut hosts: Vec<InventoryHost> = Vec::new();
    for host in &document.hosts {
        let valid = source.host(host, &document.defaults)?;
        if hosts.iter().any(|earlier| earlier.name == valid.name) {
            return Err(source.error(host.name.span(), format!("a second host `{}`", valid.name)));
        }
        if let Some(earlier) = hosts.iter().find(|earlier| earlier.has_endpoint_of(&valid)) {
            let span = host.address.as_ref().map_or(host.name.span(), Spanned::span);
            let cause = format!("`{}` has the address and the port of the host `{}`", valid.name, earlier.name);
            return Err(source.error(span, cause));
        }
        hosts.push(valid);
    }
    let Some(first) = hosts.first() else {
        return Err(source.error(0..0, "no hosts; add one with [[hosts]]"));
    };
    let authority = match &document.authority {
        None => first.name.clone(),
        Some(name) => source.known_host(name, &hosts)?,
    };
    for host in &document.hosts {
        source.check_jumps(host, &document.defaults, &hosts)?;
    }
    Ok(Inventory {
        file: file.to_owned(),
        groups: groups::resolve(source, &document.groups, &hosts)?,
        authority,
        known_hosts: document.known_hosts.as_ref().map(|path| source.local_file(path)).transpose()?,
        connect_timeout: source.connect_timeout(document.connect_timeout_s.as_ref())?,
        install: source.install(&document.install)?,
        hosts,
    })
}

impl SourceText<'_> {
    /// Requires a condition of a value.
    fn require(&self, value: &Spanned<String>, is_valid: bool, rule: &str) -> Result<(), InventoryError> {
        match is_valid {
            true => Ok(()),
            false => Err(self.error(value.span(), format!("`{}` is not {rule}", value.as_ref().escape_debug()))),
        }
    }

    fn host(&self, host: &HostDocument, defaults: &HostDefaults) -> Result<InventoryHost, InventoryError> {
        let name = self.host_name(&host.name)?;
        let user = host.user.as_ref().or(defaults.user.as_ref());
        let key = host.key.as_ref().or(defaults.key.as_ref());
        let jump = jump_of(host, defaults).map(|jump| self.host_name(jump)).transpose()?;
        if let Some(address) = &host.address {
            let rule = "a host name or an address";
            self.require(address, is_address(address.as_ref()), rule)?;
        }
        if let Some(user) = user {
            self.require(user, is_user(user.as_ref()), "a user name")?;
        }
        if let Some(cpus) = &host.cpus {
            let is_list = parse_cpu_list(cpus.as_ref()).is_some_and(|words| !words.is_empty());
            self.require(cpus, is_list, "a list of CPUs like 0-3,8")?;
        }
        Ok(InventoryHost {
            address: host.address.as_ref().map_or_else(|| name.to_string(), |address| address.as_ref().clone()),
            name,
            port: host.port.or(defaults.port).map(u16::from),
            user: user.map(|user| user.as_ref().clone()),
            key: key.map(|key| self.local_file(key)).transpose()?,
            jump,
            traffic: host.traffic.iter().map(|endpoint| self.traffic(endpoint)).collect::<Result<_, _>>()?,
            cpus: host.cpus.as_ref().map(|cpus| cpus.as_ref().clone()),
            numa_node: host.numa_node,
        })
    }

    fn host_name(&self, name: &Spanned<String>) -> Result<NodeName, InventoryError> {
        let valid = NodeName::new(name.as_ref()).map_err(|error| self.error(name.span(), error))?;
        self.require(name, valid.as_str() != GROUP_ALL, "free: it is the group of all hosts")?;
        Ok(valid)
    }

    fn known_host(&self, name: &Spanned<String>, hosts: &[InventoryHost]) -> Result<NodeName, InventoryError> {
        let found = hosts.iter().find(|host| host.name.as_str() == name.as_ref());
        let found = found.ok_or_else(|| self.error(name.span(), format!("no host `{}`", name.as_ref())))?;
        Ok(found.name.clone())
    }

    /// Requires that the jump hosts of a host exist, and that the host does not lead to itself.
    fn check_jumps(
        &self,
        host: &HostDocument,
        defaults: &HostDefaults,
        hosts: &[InventoryHost],
    ) -> Result<(), InventoryError> {
        let Some(jump) = jump_of(host, defaults) else { return Ok(()) };
        let mut path = vec![self.known_host(&host.name, hosts)?];
        let mut next = Some(self.known_host(jump, hosts)?);
        while let Some(name) = next {
            let is_cycle = path.contains(&name);
            next = hosts.iter().find(|host| host.name == name).and_then(|host| host.jump.clone());
            path.push(name);
            if is_cycle {
                let path: Vec<&str> = path.iter().map(NodeName::as_str).collect();
                return Err(self.error(jump.span(), format!("the jump hosts are a cycle: {}", path.join(" → "))));
            }
        }
        Ok(())
    }

    /// A file of this machine. ssh reads its name from a configuration file, where some characters have a meaning.
    fn local_file(&self, path: &Spanned<String>) -> Result<PathBuf, InventoryError> {
        let text = path.as_ref();
        let is_readable_by_ssh =
            !text.contains(['"', '\\']) && !text.contains("${") && !text.chars().any(char::is_control);
        self.require(path, is_readable_by_ssh, "a path without quotes, backslashes, `${` and control characters")?;
        let absolute = match (text.strip_prefix("~/"), env::home_dir()) {
            (Some(below), Some(home)) => home.join(below),
            _ => std::path::absolute(self.file.parent().unwrap_or(Path::new("")).join(text))
                .map_err(|error| self.error(path.span(), error))?,
        };
        self.require(path, absolute.is_file(), "an existing file")?;
        Ok(absolute)
    }

    fn traffic(&self, endpoint: &Spanned<String>) -> Result<TrafficEndpoint, InventoryError> {
        let text = endpoint.as_ref();
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(TrafficEndpoint::Address(address));
        }
        let is_name = !text.is_empty() && text.len() <= INTERFACE_BYTES_MAX && !text.starts_with('-');
        let is_interface = is_name && !text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
        self.require(endpoint, is_interface, "an address or the name of an interface")?;
        Ok(TrafficEndpoint::Interface(text.clone()))
    }

    fn connect_timeout(&self, seconds: Option<&Spanned<u64>>) -> Result<Duration, InventoryError> {
        let Some(seconds) = seconds else { return Ok(CONNECT_TIMEOUT_DEFAULT) };
        match *seconds.as_ref() {
            valid @ 1..=CONNECT_TIMEOUT_S_MAX => Ok(Duration::from_secs(valid)),
            _ => Err(self.error(seconds.span(), format!("the limit is not from 1 to {CONNECT_TIMEOUT_S_MAX} s"))),
        }
    }

    fn install(&self, install: &InstallDocument) -> Result<InstallSettings, InventoryError> {
        let path = |path: &Option<Spanned<String>>, default: &str, is_valid: fn(&Path) -> bool, rule: &str| {
            let Some(path) = path else { return Ok(PathBuf::from(default)) };
            self.require(path, is_valid(Path::new(path.as_ref())), rule)?;
            Ok(PathBuf::from(path.as_ref()))
        };
        let own_path = |name: &Option<_>, default| path(name, default, InstallSettings::is_own_path, OWN_PATH_RULE);
        for argument in &install.arguments {
            let rule = "an argument of letters, digits and ._-+/:,=?@[]";
            self.require(argument, InstallSettings::is_valid_argument(argument.as_ref()), rule)?;
            if InstallSettings::is_own_option(argument.as_ref()) {
                let cause = format!("{} is reserved for `farfork cluster deploy`", argument.as_ref());
                return Err(self.error(argument.span(), cause));
            }
        }
        let port = install.port.as_ref();
        if let Some(port) = port.filter(|port| port.as_ref().get() == u16::MAX) {
            return Err(self.error(port.span(), "the next port is for memory, and there is none"));
        }
        let cluster = match &install.cluster {
            None => NodeName::new(CLUSTER_DEFAULT).expect("a valid name"),
            Some(name) => NodeName::new(name.as_ref()).map_err(|error| self.error(name.span(), error))?,
        };
        let [prefix, run_dir, trust, log] = INSTALL_DEFAULT;
        Ok(InstallSettings {
            prefix: path(&install.prefix, prefix, InstallSettings::is_valid_path, PATH_RULE)?,
            run_dir: own_path(&install.run_dir, run_dir)?,
            trust: own_path(&install.trust, trust)?,
            log: own_path(&install.log, log)?,
            port: port.map_or(PORT_DEFAULT, |port| port.as_ref().get()),
            cluster,
            arguments: install.arguments.iter().map(|argument| argument.as_ref().clone()).collect(),
        })
    }
}

/// The name of the host through which `host` is reached. The default does not apply to the jump host itself.
fn jump_of<'a>(host: &'a HostDocument, defaults: &'a HostDefaults) -> Option<&'a Spanned<String>> {
    let default = defaults.jump.as_ref().filter(|jump| jump.as_ref() != host.name.as_ref());
    host.jump.as_ref().or(default)
}

/// Whether ssh reads the text as a host name or an address, and not as an option or a pattern.
fn is_address(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    !text.is_empty() && text.len() <= ADDRESS_BYTES_MAX && !text.starts_with('-') && text.chars().all(is_allowed)
}

/// Whether ssh reads the text as a user name.
fn is_user(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.len() <= USER_BYTES_MAX && text.starts_with(is_first) && text.chars().all(is_allowed)
}
