//! kubeconfig: where the cluster is, whom to trust, who one is, in one file for kubectl and every client library.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Credentials;

/// What goes into the file. All of it is embedded: the file works from anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Kubeconfig<'a> {
    /// Name of the cluster and of the context.
    pub cluster: &'a str,
    /// `https://127.0.0.1:6443`
    pub server: &'a str,
    pub ca_pem: &'a str,
    pub user: &'a str,
    pub credentials: &'a Credentials,
}

impl Kubeconfig<'_> {
    /// The file's text (YAML). It holds a private key: write it with mode 0600.
    pub fn render(&self) -> String {
        let encode = |text: &str| STANDARD.encode(text);
        // JSON strings are YAML strings: names need no quoting rules of their own.
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        let context =
            if self.user == self.cluster { self.cluster.to_owned() } else { format!("{}@{}", self.user, self.cluster) };
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: {cluster}\n\
             \x20 cluster:\n\
             \x20   server: {server}\n\
             \x20   certificate-authority-data: {ca}\n\
             contexts:\n\
             - name: {context}\n\
             \x20 context:\n\
             \x20   cluster: {cluster}\n\
             \x20   user: {user}\n\
             current-context: {context}\n\
             preferences: {{}}\n\
             users:\n\
             - name: {user}\n\
             \x20 user:\n\
             \x20   client-certificate-data: {certificate}\n\
             \x20   client-key-data: {key}\n",
            cluster = quote(self.cluster),
            server = quote(self.server),
            ca = encode(self.ca_pem),
            context = quote(&context),
            user = quote(self.user),
            certificate = encode(&self.credentials.certificate_pem),
            key = encode(&self.credentials.key_pem),
        )
    }
}
