//! The files of `?credentials=DIRECTORY`: a user and its password, and the certificates of TLS. They are read once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::ASN1Time;

use crate::catalog::location::EtcdLocation;

/// The file of the client's certificate.
const CERTIFICATE_FILE: &str = "client.pem";

/// The identity of a client, and the authority that it expects of the members.
pub(super) struct EtcdCredentials {
    user: Option<EtcdUser>,
    tls: Option<TlsOptions>,
    /// The certificate with which the client authenticates itself.
    certificate: Option<CertificateLifetime>,
}

struct EtcdUser {
    name: String,
    password: String,
}

/// A file with a certificate, and when it expires.
struct CertificateLifetime {
    path: PathBuf,
    expires: ASN1Time,
}

impl EtcdCredentials {
    /// # Errors
    /// When a file cannot be read, or is no certificate, or when the directory has no file that is used, or half of a pair.
    pub(super) fn read(location: &EtcdLocation) -> io::Result<Self> {
        let directory = location.credentials.as_deref();
        let file = |name: &str| directory.map_or(Ok(None), |directory| read_file(directory, name));
        let user = match (file("user")?, file("password")?) {
            (Some(name), Some(password)) => Some(EtcdUser { name: text_line(name)?, password: text_line(password)? }),
            (None, None) => None,
            _ => return Err(missing_file(directory, "one of the files user and password")),
        };
        let authority = file("ca.pem")?;
        let mut credentials = Self { user, tls: None, certificate: None };
        if location.uses_tls {
            let mut tls = TlsOptions::new();
            if let Some(authority) = &authority {
                tls = tls.ca_certificate(Certificate::from_pem(authority));
            }
            match (file(CERTIFICATE_FILE)?, file("client.key")?) {
                (Some(certificate), Some(key)) => {
                    let path = directory.unwrap_or(Path::new("")).join(CERTIFICATE_FILE);
                    credentials.certificate = Some(CertificateLifetime::read(path, &certificate)?);
                    tls = tls.identity(Identity::from_pem(certificate, key));
                }
                (None, None) => {}
                _ => return Err(missing_file(directory, "one of the files client.pem and client.key")),
            }
            credentials.tls = Some(tls);
        }
        let is_used = credentials.user.is_some()
            || (location.uses_tls && (authority.is_some() || credentials.certificate.is_some()));
        if directory.is_some() && !is_used {
            // Without a user, the members would be asked without authentication.
            let files =
                if location.uses_tls { "user, password, ca.pem, client.pem, client.key" } else { "user and password" };
            return Err(missing_file(directory, &format!("all of the files {files}")));
        }
        Ok(credentials)
    }

    pub(super) fn add_to(&self, options: ConnectOptions) -> ConnectOptions {
        let options = match &self.user {
            Some(user) => options.with_user(&user.name, &user.password),
            None => options,
        };
        match &self.tls {
            Some(tls) => options.with_tls(tls.clone()),
            None => options,
        }
    }

    /// The user of the requests.
    pub(super) fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// Whether the client has a certificate.
    pub(super) fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }

    /// Names the certificate of the client if it has expired. The members only close the connection.
    pub(super) fn expired_certificate(&self) -> Option<String> {
        let CertificateLifetime { path, expires } =
            self.certificate.as_ref().filter(|certificate| certificate.expires < ASN1Time::now())?;
        Some(format!("{} has expired on {expires}: renew it, and restart the daemon", path.display()))
    }
}

impl CertificateLifetime {
    fn read(path: PathBuf, text: &[u8]) -> io::Result<Self> {
        let invalid = |reason: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: not a certificate: {reason}", path.display()))
        };
        let (_, block) = parse_x509_pem(text).map_err(|error| invalid(error.to_string()))?;
        let expires = block.parse_x509().map_err(|error| invalid(error.to_string()))?.validity().not_after;
        Ok(Self { path, expires })
    }
}

fn missing_file(directory: Option<&Path>, missing: &str) -> io::Error {
    let directory = directory.unwrap_or(Path::new("")).display();
    io::Error::new(io::ErrorKind::NotFound, format!("the credentials directory {directory} lacks {missing}"))
}

/// Reads a file of the credentials; `None` if it does not exist.
fn read_file(directory: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let path = directory.join(name);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

fn text_line(bytes: Vec<u8>) -> io::Result<String> {
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_credentials_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let refusal = |uses_tls: bool, path: &Path| {
            let (members, prefix) = (vec!["h:1".to_owned()], "/farfork".to_owned());
            let location = EtcdLocation { uses_tls, members, prefix, credentials: Some(path.to_owned()) };
            EtcdCredentials::read(&location).err().map_or_else(String::new, |error| error.to_string())
        };
        assert!(refusal(false, &directory.path().join("missing")).contains("all of the files user and password"));
        assert!(refusal(true, directory.path()).contains("ca.pem"));
        fs::write(directory.path().join("user"), "farfork").unwrap();
        assert!(refusal(false, directory.path()).contains("one of the files user and password"));
        fs::write(directory.path().join("password"), "word").unwrap();
        assert_eq!(refusal(false, directory.path()), "");
    }
}
