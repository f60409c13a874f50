//! What the commands of engines and replicas have in common: sizes, keys, control sockets.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tether_engine::auth::{Key, KeySource};
use tether_engine::control::{Protection, TlsFiles};
use tether_engine::frontend::nbd::tls;
use tether_engine::host::Address;

/// A size in bytes: `4GiB`, `512M`, `4096`. Powers of 1024, as volumes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim_end_matches("iB").trim_end_matches('i').trim_end_matches('B') {
            "" => 0,
            "K" | "k" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(format!("{unit:?} is no unit: KiB, MiB, GiB and TiB are")),
        };
        let number: u64 = number.parse().map_err(|_| "a size is a number with a unit, such as 4GiB".to_owned())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| "too large".to_owned())
    }
}

/// Where the volume's key comes from.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KeyArgs {
    /// File with the volume's key: 32 random bytes or more, readable by you alone. Not needed where nothing leaves
    /// the machine: there a key of your own is made and kept in ~/.local/state/tether
    #[arg(long, value_name = "FILE", env = "TETHER_KEY_FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArgs {
    /// The key for connections to and from `addresses`.
    pub(crate) fn read<'a>(&self, addresses: impl IntoIterator<Item = &'a Address>) -> Result<Key> {
        if let Some(path) = &self.key_file {
            return Ok(KeySource::File(path.clone()).read()?);
        }
        if let Some(far) = addresses.into_iter().find(|address| !address.is_local()) {
            bail!(
                "--key-file: needed, because {far} is not on this machine: everybody who can reach it could read and \
                 write the volume. Make one with `head -c 32 /dev/urandom > volume.key; chmod 600 volume.key` and give \
                 it to the engine and all of its replicas"
            );
        }
        Ok(KeySource::User.read()?)
    }
}

/// Certificates for what leaves the machine.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_field_names, reason = "the names are those of the flags")]
pub(crate) struct TlsArgs {
    /// Certificate (PEM) for the control API over TCP
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The authority (PEM) that signs the other side's certificates
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Control over TCP in clear, on loopback addresses only: everybody on this machine can use it
    #[arg(long, conflicts_with = "tls_cert")]
    insecure_loopback: bool,
}

impl TlsArgs {
    pub(crate) fn protection(&self) -> Protection {
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(authority)) => Protection::Tls(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                authority: authority.clone(),
            }),
            _ if self.insecure_loopback => Protection::InsecureLoopback,
            _ => Protection::None,
        }
    }
}

/// Certificates for NBD.
#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_field_names, reason = "the names are those of the flags")]
pub(crate) struct NbdTlsArgs {
    /// Certificate (PEM) of the NBD server
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_key", "nbd_tls_ca"])]
    nbd_tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE")]
    nbd_tls_key: Option<PathBuf>,
    /// The authority (PEM) that signs certificates of NBD clients
    #[arg(long, value_name = "FILE")]
    nbd_tls_ca: Option<PathBuf>,
}

impl NbdTlsArgs {
    pub(crate) fn configure(&self) -> Result<Option<Arc<tls::ServerConfig>>> {
        let (Some(certificate), Some(key), Some(authority)) = (&self.nbd_tls_cert, &self.nbd_tls_key, &self.nbd_tls_ca)
        else {
            return Ok(None);
        };
        let (certificate, key, client_authority) = (certificate.clone(), key.clone(), authority.clone());
        Ok(Some(tls::configure(&tls::Files { certificate, key, client_authority })?))
    }
}

/// Where instances of this user listen for control unless told otherwise.
pub(crate) fn control_socket(name: &str) -> Result<Address> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let state = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    let dir = runtime.or_else(state).context("--control: needed, since neither XDG_RUNTIME_DIR nor HOME is set")?;
    Ok(Address::Unix(dir.join("tether").join(format!("{name}.sock"))))
}

/// Where the control API is, for servers and clients alike.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ControlArgs {
    /// Where the control API is: unix:/path, or IP:PORT (with --tls-cert) [default: a socket named
    /// after the instance in $XDG_RUNTIME_DIR/tether]
    #[arg(long, value_name = "ADDR")]
    control: Option<Address>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

impl ControlArgs {
    /// The address given, or that of the instance called `name`.
    pub(crate) fn resolve(&self, name: &str) -> Result<Address> {
        self.control.clone().map_or_else(|| control_socket(name), Ok)
    }
}

/// Bytes for people.
pub(crate) fn human(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => format!("{}{unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        let table =
            [("4GiB", 4 << 30), ("4G", 4 << 30), ("4Gi", 4 << 30), ("512MiB", 512 << 20), ("4096", 4096), ("1k", 1024)];
        for (text, bytes) in table {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "GiB", "4X", "-1", "1.5GiB", "99999999TiB"] {
            assert!(text.parse::<Size>().is_err(), "{text:?} was taken");
        }
        assert_eq!([human(4 << 30), human(1536), human(12)], ["4GiB", "1.5KiB", "12B"]);
    }
}
