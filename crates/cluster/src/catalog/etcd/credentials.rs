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

/// What a client proves to the members, and how it recognises them.
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
    /// When a file cannot be read, or is no certificate.
    pub(super) fn read(location: &EtcdLocation) -> io::Result<Self> {
        let directory = location.credentials.as_deref();
        let file = |name: &str| directory.map_or(Ok(None), |directory| read_file(directory, name));
        let user = match (file("user")?, file("password")?) {
            (Some(name), Some(password)) => Some(EtcdUser { name: text_line(name)?, password: text_line(password)? }),
            _ => None,
        };
        let mut credentials = Self { user, tls: None, certificate: None };
        if location.uses_tls {
            let mut tls = TlsOptions::new();
            if let Some(authority) = file("ca.pem")? {
                tls = tls.ca_certificate(Certificate::from_pem(authority));
            }
            if let (Some(certificate), Some(key)) = (file(CERTIFICATE_FILE)?, file("client.key")?) {
                let path = directory.unwrap_or(Path::new("")).join(CERTIFICATE_FILE);
                credentials.certificate = Some(CertificateLifetime::read(path, &certificate)?);
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            credentials.tls = Some(tls);
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
