//! `CatalogReference`: the catalog that a trust directory names. Nodes that join get it with their certificate.

use farfork_trust::{DirectoryError, Fingerprint, TrustDirectory};
use serde::{Deserialize, Serialize};

use super::{Catalog, CatalogError, CatalogLocation};

/// The catalog with the members of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogReference {
    /// The place of the catalog, which all nodes reach.
    pub location: CatalogLocation,
    /// Identifies the cluster, so that no other cluster's records are used.
    pub cluster: String,
}

impl CatalogReference {
    /// Reads the reference from a trust directory; none if the cluster's members are not in a catalog.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn read(directory: &TrustDirectory) -> Result<Option<Self>, DirectoryError> {
        let Some(bytes) = directory.read_catalog()? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| DirectoryError::InvalidContent {
            path: directory.catalog_path(),
            cause: error.to_string(),
        })
    }

    /// Writes the reference into a trust directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, directory: &TrustDirectory) -> Result<(), DirectoryError> {
        directory.write_catalog(&self.to_bytes())
    }

    /// Encodes the reference, as in the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the location and the identity are texts")
    }
}

/// Refuses a catalog that another cluster has reserved. A cluster without a catalog of its own is identified by its authorities.
///
/// # Errors
/// `OtherCluster`; otherwise as `Catalog::read`. `Trust` if the trust directory cannot be read.
pub fn require_own_cluster(catalog: &dyn Catalog, directory: &TrustDirectory) -> Result<(), CatalogError> {
    let Some(theirs) = catalog.read_cluster()?.cluster else { return Ok(()) };
    let is_own = match CatalogReference::read(directory)? {
        Some(reference) => reference.cluster == theirs,
        None => {
            let (roster, _) = directory.read_roster()?;
            roster.authorities().iter().any(|authority| Fingerprint::of_certificate(authority).to_string() == theirs)
        }
    };
    if is_own { Ok(()) } else { Err(CatalogError::OtherCluster { theirs }) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use farfork_trust::member::create_cluster;
    use farfork_wire::NodeName;

    use super::super::{FileCatalog, claim_catalog};
    use super::*;

    fn new_cluster(path: &Path) -> (TrustDirectory, String) {
        let (directory, name) = (TrustDirectory::new(path), NodeName::new("same").unwrap());
        create_cluster(&directory, &name, &name, SystemTime::now()).unwrap();
        let authority = Fingerprint::of_certificate(&directory.read_roster().unwrap().0.authorities()[0]).to_string();
        (directory, authority)
    }

    #[test]
    fn a_catalog_of_another_cluster_of_the_same_name_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let catalog = FileCatalog::new(&path("catalog"));
        let ((own, authority), (other, _)) = (new_cluster(&path("own")), new_cluster(&path("other")));
        for directory in [&own, &other] {
            require_own_cluster(&catalog, directory).unwrap();
        }
        claim_catalog(&catalog, &authority).unwrap();
        require_own_cluster(&catalog, &own).unwrap();
        let refused = require_own_cluster(&catalog, &other).unwrap_err().to_string();
        assert!(refused.contains(&authority) && refused.contains("another cluster"), "{refused}");
        // The authorities may have been replaced since.
        let location = CatalogLocation::File(path("catalog"));
        CatalogReference { location, cluster: authority }.write(&other).unwrap();
        require_own_cluster(&catalog, &other).unwrap();
    }
}
