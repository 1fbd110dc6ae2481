//! Tests of `FileCatalog`.

use super::*;
use crate::catalog::conformance::{self, new_record, raise_term, volume_name};
use crate::catalog::{DamagedRecordPolicy, import_volumes};

fn catalog_in(directory: &Path) -> FileCatalog {
    FileCatalog::new(&directory.join("catalog"))
}

#[test]
fn a_file_is_a_catalog() {
    conformance::check_all(|| {
        let directory = tempfile::tempdir().unwrap();
        move || Box::new(catalog_in(directory.path()))
    });
}

#[test]
fn the_file_is_read_again_only_after_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, reader) = (catalog_in(directory.path()), catalog_in(directory.path()));
    writer.write_volume(&volume_name("data"), &new_record()).unwrap();
    let first = reader.read().unwrap();
    assert!(Arc::ptr_eq(&first, &reader.read().unwrap()));
    writer.write_volume(&volume_name("more"), &new_record()).unwrap();
    assert_eq!(reader.read().unwrap().volumes.len(), 2);
    let path = directory.path().join("catalog");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("more", "moved")).unwrap();
    assert!(reader.read().unwrap().volumes.contains_key(&volume_name("moved")));
    fs::remove_file(path).unwrap();
    assert!(reader.read().unwrap().volumes.is_empty());
}

#[test]
fn the_temporary_file_of_a_writer_that_died_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = catalog_in(directory.path());
    catalog.write_volume(&volume_name("data"), &new_record()).unwrap();
    fs::write(directory.path().join("catalog.new"), vec![b'{'; 1 << 20]).unwrap();
    assert_eq!(catalog_in(directory.path()).read().unwrap().volumes.len(), 1);
    catalog.write_volume(&volume_name("more"), &new_record()).unwrap();
    assert_eq!(catalog_in(directory.path()).read().unwrap().volumes.len(), 2);
}

#[test]
fn a_damaged_or_newer_file_is_refused_and_not_overwritten() {
    for text in ["", "{", "[]", r#"{"format": 2}"#, r#"{"format": 1, "last_revision": 0}"#] {
        let directory = tempfile::tempdir().unwrap();
        let catalog = catalog_in(directory.path());
        fs::write(directory.path().join("catalog"), text).unwrap();
        assert!(matches!(catalog.read(), Err(CatalogError::Format { .. })), "{text}");
        let written = catalog.write_volume(&volume_name("data"), &new_record());
        assert!(matches!(written, Err(CatalogError::Format { .. })), "{text}");
        assert_eq!(fs::read_to_string(directory.path().join("catalog")).unwrap(), text);
    }
}

#[test]
fn a_damaged_record_concerns_no_other_volume_and_stays_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (catalog, path) = (catalog_in(directory.path()), directory.path().join("catalog"));
    let (data, other) = (volume_name("data"), volume_name("other"));
    catalog.write_volume(&data, &new_record()).unwrap();
    catalog.write_volume(&other, &new_record()).unwrap();
    let read_file = || serde_json::from_slice::<Value>(&fs::read(&path).unwrap()).unwrap();
    let intact = catalog.read().unwrap().volumes[&data].clone();
    let mut edited = read_file();
    edited["volumes"]["data"]["log_bytes"] = (1_u64 << 62).into();
    edited["volumes"]["no name"] = "kept".into();
    fs::write(&path, edited.to_string()).unwrap();

    raise_term(&catalog, &other);
    let contents = catalog.read().unwrap();
    assert_eq!(contents.volumes[&other].term, 1);
    let error = contents.volume(&data).unwrap_err().to_string();
    assert!(error.contains("`volumes.data` of") && error.contains("`log_bytes`"), "{error}");
    for key in ["data", "no name"] {
        assert_eq!(read_file()["volumes"][key], edited["volumes"][key]);
    }
    let created = catalog.write_volume(&data, &new_record());
    assert!(matches!(created, Err(CatalogError::Conflict(_))), "the name is in use");

    let records = CatalogContents { volumes: [(data.clone(), intact)].into(), ..CatalogContents::default() };
    import_volumes(&catalog, &records, DamagedRecordPolicy::Replace).unwrap();
    assert!(catalog.read().unwrap().volume(&data).unwrap().is_some());
    assert_eq!(read_file()["volumes"]["no name"], "kept");
}

#[test]
fn a_full_disk_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    // A file that cannot be replaced, as on a full disk, after its successor was begun.
    fs::create_dir(directory.path().join("catalog")).unwrap();
    let catalog = catalog_in(directory.path());
    assert!(catalog.replace(&CatalogDocument::empty()).is_err());
    assert!(!directory.path().join("catalog.new").exists());
}

#[test]
fn names_have_letters_digits_hyphens_and_underscores() {
    for text in ["data", "a", "A-b_9", &"x".repeat(48)] {
        assert_eq!(VolumeName::new(text).unwrap().as_str(), text);
    }
    for text in ["", ".", "..", "a/b", "a b", "ä", "a\0", &"x".repeat(49)] {
        assert!(matches!(VolumeName::new(text), Err(CatalogError::InvalidName(_))), "{text}");
    }
    assert!(serde_json::from_str::<VolumeName>(r#""../up""#).is_err());
}
