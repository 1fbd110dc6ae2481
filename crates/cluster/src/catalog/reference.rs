//! `CatalogReference`: the catalog that a trust directory names, and the identity by which a catalog belongs to one cluster.
//! Nodes that join get it with their certificate.

use farfork_trust::{DirectoryError, Fingerprint, TrustDirectory};
use serde::{Deserialize, Serialize};

use super::{Catalog, CatalogError, CatalogLocation};

/// The catalog of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogReference {
    /// The catalog with the members, which all nodes reach. None if the members are not in a catalog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<CatalogLocation>,
    /// Identifies the cluster, so that no other cluster's records are used.
    pub cluster: String,
}

impl CatalogReference {
    /// Reads the reference from a trust directory; none if the cluster has not reserved a catalog.
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

/// Reserves a catalog for the cluster of a trust directory. Returns the identity of the cluster in the catalog: the one in the
/// reference of the directory, or one of its authorities.
///
/// # Errors
/// `OtherCluster` if another cluster has reserved it; otherwise as `Catalog::read`. `Trust` if the directory cannot be read.
pub fn reserve_catalog(catalog: &dyn Catalog, directory: &TrustDirectory) -> Result<String, CatalogError> {
    let (reference, (roster, _)) = (CatalogReference::read(directory)?, directory.read_roster()?);
    let authorities = roster.authorities().iter().map(|authority| Fingerprint::of_certificate(authority).to_string());
    let own: Vec<String> = reference.map(|reference| reference.cluster).into_iter().chain(authorities).collect();
    let present = match (catalog.read_cluster()?.cluster, own.first()) {
        (Some(present), _) => present,
        (None, Some(own)) => catalog.write_cluster(own)?,
        // A roster has an authority.
        (None, None) => return Ok(String::new()),
    };
    if own.contains(&present) { Ok(present) } else { Err(CatalogError::OtherCluster { theirs: present }) }
}

/// Reserves the catalog of a node's volumes, and refuses one of another cluster. A node without a trust directory has no
/// cluster, and reserves nothing. A file is not reserved, because its path is chosen for the cluster.
///
/// # Errors
/// As `reserve_catalog`.
pub fn require_own_catalog(
    location: &CatalogLocation,
    catalog: &dyn Catalog,
    directory: Option<&TrustDirectory>,
) -> Result<(), CatalogError> {
    let owner = catalog.read_cluster()?.cluster;
    let Some(directory) = directory else {
        return owner.map_or(Ok(()), |theirs| Err(CatalogError::OtherCluster { theirs }));
    };
    if location.file().is_some() && owner.is_none() {
        return Ok(());
    }
    let cluster = reserve_catalog(catalog, directory)?;
    if CatalogReference::read(directory)?.is_none() {
        // The authorities may be replaced later. Nodes that join get the identity with their certificate.
        CatalogReference { location: None, cluster }.write(directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use farfork_trust::member::create_cluster;
    use farfork_wire::NodeName;

    use super::super::FileCatalog;
    use super::*;

    fn new_cluster(path: &Path) -> (TrustDirectory, String) {
        let (directory, name) = (TrustDirectory::new(path), NodeName::new("same").unwrap());
        create_cluster(&directory, &name, &name, SystemTime::now()).unwrap();
        let authority = Fingerprint::of_certificate(&directory.read_roster().unwrap().0.authorities()[0]).to_string();
        (directory, authority)
    }

    /// An etcd is reserved by its first cluster. This file takes its place.
    fn require(catalog: &FileCatalog, directory: Option<&TrustDirectory>) -> Result<(), CatalogError> {
        require_own_catalog(&"etcd://h:1".parse().unwrap(), catalog, directory)
    }

    #[test]
    fn a_catalog_belongs_to_the_first_cluster_that_uses_it() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let catalog = FileCatalog::new(&path("catalog"));
        let ((own, authority), (other, _)) = (new_cluster(&path("own")), new_cluster(&path("other")));
        require(&catalog, None).unwrap();
        let file = CatalogLocation::File(path("catalog"));
        for directory in [&own, &other] {
            require_own_catalog(&file, &catalog, Some(directory)).unwrap();
        }

        require(&catalog, Some(&own)).unwrap();
        for refused in [require(&catalog, Some(&other)), require(&catalog, None)] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(&authority) && refused.contains("another cluster"), "{refused}");
        }
        assert!(require_own_catalog(&file, &catalog, Some(&other)).is_err(), "a reserved file");
    }

    #[test]
    fn a_catalog_stays_reserved_when_the_authority_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let catalog = FileCatalog::new(&path("catalog"));
        let (own, authority) = new_cluster(&path("own"));
        require(&catalog, Some(&own)).unwrap();
        // The directory of a cluster with the same reference, and other authorities.
        let (later, _) = new_cluster(&path("later"));
        later.write_catalog(&own.read_catalog().unwrap().unwrap()).unwrap();
        require(&catalog, Some(&later)).unwrap();
        assert_eq!(reserve_catalog(&catalog, &later).unwrap(), authority);
        assert_eq!(CatalogReference::read(&later).unwrap().unwrap().location, None, "the members stay where they are");
    }
}
