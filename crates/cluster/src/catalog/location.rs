//! The location of a catalog: the value of `--catalog`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::etcd::EtcdCatalog;
use super::{Catalog, CatalogError, FileCatalog};

/// The key prefix of a catalog in etcd, if its location has none.
const DEFAULT_PREFIX: &str = "/farfork";

/// The place of a catalog. Its text is a path, or
/// `etcd[s]://HOST:PORT[,HOST:PORT…][/PREFIX][?credentials=DIRECTORY]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CatalogLocation {
    /// A file that all nodes of the cluster reach.
    File(PathBuf),
    /// Keys in etcd.
    Etcd(EtcdLocation),
}

/// The keys of a catalog in etcd, and how to reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdLocation {
    /// Whether connections use TLS.
    pub uses_tls: bool,
    /// `HOST:PORT` of members, at least one.
    pub members: Vec<String>,
    /// The keys of the catalog begin with this text and a `/`. It begins with `/`, and does not end with it.
    pub prefix: String,
    /// Directory with the files `user` and `password`, and for TLS `ca.pem`, `client.pem` and `client.key`. Each of the two
    /// pairs, and `ca.pem`, may be missing.
    pub credentials: Option<PathBuf>,
}

impl CatalogLocation {
    /// Opens the catalog. Nothing is read yet.
    ///
    /// # Errors
    /// `Store` if credentials cannot be read.
    pub fn open(&self) -> Result<Arc<dyn Catalog>, CatalogError> {
        Ok(match self {
            Self::File(path) => Arc::new(FileCatalog::new(path)),
            Self::Etcd(location) => Arc::new(EtcdCatalog::open(location)?),
        })
    }

    /// The name of the roster in the store, for messages.
    pub fn roster_place(&self) -> String {
        match self {
            Self::File(path) => format!("`cluster.roster` of the file {}", path.display()),
            Self::Etcd(location) => format!("the key {}/roster", location.prefix),
        }
    }

    /// The path of a catalog in a file.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Etcd(_) => None,
        }
    }
}

impl From<PathBuf> for CatalogLocation {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl FromStr for CatalogLocation {
    type Err = CatalogError;

    fn from_str(text: &str) -> Result<Self, CatalogError> {
        let (uses_tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) if text.contains("://") => {
                return Err(invalid(text, "it must be a path, or begin with etcd:// or etcds://"));
            }
            (None, None) => return Ok(Self::File(PathBuf::from(text))),
        };
        let (address, query) = rest.split_once('?').map_or((rest, None), |(address, query)| (address, Some(query)));
        let credentials = match query.map(|query| query.strip_prefix("credentials=")) {
            None => None,
            Some(Some(directory)) if !directory.is_empty() => Some(PathBuf::from(directory)),
            Some(_) => return Err(invalid(text, "only ?credentials=DIRECTORY may follow the prefix")),
        };
        let (members, prefix) = match address.find('/') {
            Some(slash) => address.split_at(slash),
            None => (address, DEFAULT_PREFIX),
        };
        if members.contains('@') {
            return Err(invalid(text, "name user and password in files of ?credentials=DIRECTORY, not here"));
        }
        let members: Vec<String> = members.split(',').map(str::to_owned).collect();
        if !members.iter().all(|member| is_address(member)) {
            return Err(invalid(text, "each member must be HOST:PORT, separated by commas"));
        }
        if prefix.chars().any(|part| part.is_control()) {
            return Err(invalid(text, "the prefix must not have control characters"));
        }
        let prefix = match prefix.trim_end_matches('/') {
            "" => DEFAULT_PREFIX.to_owned(),
            prefix => prefix.to_owned(),
        };
        Ok(Self::Etcd(EtcdLocation { uses_tls, members, prefix, credentials }))
    }
}

impl TryFrom<String> for CatalogLocation {
    type Error = CatalogError;

    fn try_from(text: String) -> Result<Self, CatalogError> {
        text.parse()
    }
}

impl From<CatalogLocation> for String {
    fn from(location: CatalogLocation) -> Self {
        location.to_string()
    }
}

impl fmt::Display for CatalogLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Etcd(location) => location.fmt(f),
        }
    }
}

impl fmt::Display for EtcdLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.uses_tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}{}", self.members.join(","), self.prefix)?;
        match &self.credentials {
            Some(directory) => write!(f, "?credentials={}", directory.display()),
            None => Ok(()),
        }
    }
}

/// Whether a text is `HOST:PORT`.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_printable = |part: char| !part.is_control() && !part.is_whitespace();
    !host.is_empty() && host.chars().all(is_printable) && port.parse::<u16>().is_ok_and(|port| port != 0)
}

fn invalid(text: &str, reason: &'static str) -> CatalogError {
    CatalogError::InvalidLocation { text: text.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason_of(text: &str) -> String {
        text.parse::<CatalogLocation>().unwrap_err().to_string()
    }

    #[test]
    fn a_location_is_read_back_from_its_text() {
        for text in [
            "/srv/catalog",
            "etcd://10.0.0.1:2379/farfork",
            "etcds://a.example:2379,b.example:2379/clusters/one?credentials=/etc/farfork/etcd",
            "etcd://[fd00::1]:2379/farfork",
        ] {
            assert_eq!(text.parse::<CatalogLocation>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_prefix_has_a_default() {
        for text in ["etcd://h:1", "etcd://h:1/"] {
            assert_eq!(text.parse::<CatalogLocation>().unwrap().to_string(), "etcd://h:1/farfork");
        }
    }

    #[test]
    fn an_invalid_location_is_refused_with_the_reason() {
        assert!(reason_of("http://h:1").contains("begin with etcd://"));
        assert!(reason_of("etcd://").contains("HOST:PORT"));
        assert!(reason_of("etcd://h").contains("HOST:PORT"));
        assert!(reason_of("etcd://h:1,,g:2").contains("HOST:PORT"));
        assert!(reason_of("etcd://h:99999").contains("HOST:PORT"));
        for text in ["etcd://h:1/p\n", "etcd://h:1/a\tb", "etcd://h:1/\u{1b}[2J"] {
            assert!(reason_of(text).contains("control characters"), "{text:?}");
        }
        assert!(reason_of("etcd://h\n:1").contains("HOST:PORT"));
        assert!(reason_of("etcd://me:secret@h:1").contains("credentials=DIRECTORY"));
        assert!(reason_of("etcd://h:1/p?user=me").contains("credentials=DIRECTORY"));
    }
}
