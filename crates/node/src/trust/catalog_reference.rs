//! `CatalogReference`: the catalog that a trust directory names. Nodes that join get it with their certificate.

use farfork_cluster::catalog::CatalogLocation;
use farfork_trust::{DirectoryError, TrustDirectory};
use serde::{Deserialize, Serialize};

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
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the location and the identity are texts")
    }
}
