//! Copies records of volumes from one catalog to another, with a file between them: `farfork volume export-catalog` and
//! `import-catalog`, for an etcd that is gone for good.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Catalog, CatalogContents, CatalogError, DamagedRecord, VolumeName, VolumeRecord, VolumeState, record_damage,
};

/// How an import treats a record in the catalog that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DamagedRecordPolicy {
    /// Keep the record, and name it.
    Keep,
    /// Replace the record.
    Replace,
}

/// The result of an import for each volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportSummary {
    /// Volumes whose records were written.
    pub written: Vec<VolumeName>,
    /// Volumes whose records were in the catalog already.
    pub present: Vec<VolumeName>,
    /// Volumes whose records in the catalog cannot be read, and were kept.
    pub damaged: BTreeMap<VolumeName, DamagedRecord>,
}

/// Why nothing, or not everything, was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The catalog cannot be read or written.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A record contradicts itself.
    #[error("the record of volume {name} is not valid: {reason}; nothing was imported")]
    Invalid {
        /// The volume.
        name: VolumeName,
        /// The reason.
        reason: &'static str,
    },
    /// The catalog has another volume of this name.
    #[error("the catalog has another volume {0}: drop or import one of the two elsewhere; nothing was imported")]
    OtherVolume(VolumeName),
    /// The catalog has a later record, so the imported one is out of date.
    #[error(
        "the catalog has a later record of volume {name} (epoch {epoch}, term {term}): import a file with this one, or a later one; nothing \
         was imported"
    )]
    Later {
        /// The volume.
        name: VolumeName,
        /// The epoch in the catalog.
        epoch: u64,
        /// The term in the catalog.
        term: u32,
    },
}

/// Writes records of volumes into a catalog. Nodes register themselves. Checks everything before the first write.
///
/// # Errors
/// As [`ImportError`]. `Conflict` if a node has changed a record meanwhile: repeat the import.
pub fn import_volumes(
    catalog: &dyn Catalog,
    imported: &CatalogContents,
    policy: DamagedRecordPolicy,
) -> Result<ImportSummary, ImportError> {
    let present = catalog.read()?;
    let mut summary = ImportSummary::default();
    let mut writes = Vec::new();
    for (name, record) in &imported.volumes {
        if let Some(reason) = record_damage(record) {
            return Err(ImportError::Invalid { name: name.clone(), reason });
        }
        if let Some(damaged) = present.damaged.get(name) {
            if policy == DamagedRecordPolicy::Replace {
                writes.push((name, VolumeRecord { revision: damaged.revision, ..record.clone() }));
            } else {
                summary.damaged.insert(name.clone(), damaged.clone());
            }
            continue;
        }
        let revision = match present.volumes.get(name) {
            None => 0,
            Some(present) if present.id != record.id => return Err(ImportError::OtherVolume(name.clone())),
            Some(present) if is_same(present, record) => {
                summary.present.push(name.clone());
                continue;
            }
            Some(present) if !record.is_later_than(present) && !has_later_state(record, present) => {
                let (epoch, term) = (present.epoch, present.term);
                return Err(ImportError::Later { name: name.clone(), epoch, term });
            }
            Some(present) => present.revision,
        };
        writes.push((name, VolumeRecord { revision, ..record.clone() }));
    }
    for (name, record) in writes {
        catalog.write_volume(name, &record)?;
        summary.written.push(name.clone());
    }
    Ok(summary)
}

fn is_same(one: &VolumeRecord, other: &VolumeRecord) -> bool {
    *one == VolumeRecord { revision: one.revision, ..other.clone() }
}

/// Whether two records differ in the state only, and the first one has the later state.
fn has_later_state(record: &VolumeRecord, other: &VolumeRecord) -> bool {
    let stage = |record: &VolumeRecord| match record.state {
        VolumeState::Creating => 0,
        VolumeState::Ready => 1,
        VolumeState::Dropping => 2,
    };
    !other.is_later_than(record) && stage(record) > stage(other)
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{new_record, volume_name};
    use super::super::{FileCatalog, update_volume};
    use super::*;

    #[test]
    fn records_are_imported_once_and_older_or_damaged_ones_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let name = volume_name("data");
        let catalog = FileCatalog::new(&directory.path().join("catalog"));
        let contents = |record: VolumeRecord| CatalogContents {
            volumes: [(name.clone(), record)].into(),
            ..CatalogContents::default()
        };
        let old = VolumeRecord { revision: 99, epoch: 4, ..new_record() };
        let file = directory.path().join("file");
        FileCatalog::create(&file, &contents(old.clone())).unwrap();
        assert!(FileCatalog::create(&file, &contents(old.clone())).is_err(), "an existing file");
        let read = FileCatalog::new(&file).read().unwrap();
        assert_eq!(
            import_volumes(&catalog, &read, DamagedRecordPolicy::Keep).unwrap().written,
            std::slice::from_ref(&name)
        );
        assert_eq!(
            import_volumes(&catalog, &read, DamagedRecordPolicy::Keep).unwrap().present,
            std::slice::from_ref(&name)
        );

        let raise = |record: &mut VolumeRecord| {
            record.epoch += 1;
            true
        };
        update_volume(&catalog, &name, raise).unwrap();
        let import = |record| import_volumes(&catalog, &contents(record), DamagedRecordPolicy::Replace);
        let refuse = |record: VolumeRecord| import(record).unwrap_err().to_string();
        let error = refuse(old.clone());
        assert!(error.contains("volume data") && error.contains("epoch 5"), "{error}");
        assert!(refuse(VolumeRecord { id: 1, ..old.clone() }).contains("another volume data"));
        assert!(refuse(VolumeRecord { epoch: 9, chain: Vec::new(), ..old.clone() }).contains("volume data"));
        assert_eq!(catalog.read().unwrap().volumes[&name].epoch, 5);
        import(VolumeRecord { epoch: 6, ..old }).unwrap();
        assert_eq!(catalog.read().unwrap().volumes[&name].epoch, 6);
    }

    #[test]
    fn a_damaged_record_stops_no_other_import() {
        let directory = tempfile::tempdir().unwrap();
        let (data, other) = (volume_name("data"), volume_name("other"));
        let path = directory.path().join("catalog");
        let catalog = FileCatalog::new(&path);
        catalog.write_volume(&data, &new_record()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"epoch\": 1", "\"epoch\": \"x\"")).unwrap();
        let volumes = [&data, &other].map(|name| (name.clone(), new_record())).into();
        let imported = CatalogContents { volumes, ..CatalogContents::default() };
        let kept = import_volumes(&catalog, &imported, DamagedRecordPolicy::Keep).unwrap();
        assert_eq!(kept.written, [other]);
        assert!(kept.damaged[&data].reason.contains("catalog"), "{kept:?}");
        assert_eq!(import_volumes(&catalog, &imported, DamagedRecordPolicy::Replace).unwrap().written, [data]);
    }
}
