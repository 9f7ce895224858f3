#include "launcher/controller/certificates.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

#include "launcher/hosts/clocks.h"
#include "launcher/hosts/ticket.h"

namespace rueda::launcher {
namespace {

constexpr long kYear = 365 * 24 * 60 * 60;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Memory = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>>;

Status failed(const char* what) {
  char text[256] = {};
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  return internal_error(std::string("cannot make the job's certificates: ") + what + ": " + text);
}

std::string text_of(BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  return std::string(data, static_cast<size_t>(size));
}

bool add_extension(X509* certificate, X509* issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, id, value));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool set_serial(X509* certificate) {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return false;
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 1);
  BIGNUM* number = BN_bin2bn(bytes, sizeof(bytes), nullptr);
  const bool good = BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return good;
}

bool set_names(X509* certificate, X509* issuer, const std::string& name, const std::string& job) {
  const auto* common = reinterpret_cast<const unsigned char*>(name.c_str());
  const auto* unit = reinterpret_cast<const unsigned char*>(job.c_str());
  X509_NAME* subject = X509_get_subject_name(certificate);
  return X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, unit, -1, -1, 0) == 1 &&
         X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, common, -1, -1, 0) == 1 &&
         X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1;
}

// `issuer` null: an authority that signs itself.
Certificate make_certificate(EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
                             const std::string& name, const std::string& job) {
  Certificate made(X509_new());
  X509* const raw = made.get();
  const bool is_authority = issuer == nullptr;
  X509* const signer = is_authority ? raw : issuer;
  const bool good =
      raw != nullptr && X509_set_version(raw, 2) == 1 && set_serial(raw) &&
      X509_gmtime_adj(X509_getm_notBefore(raw), -kCertificateEarly) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(raw), kYear) != nullptr &&
      X509_set_pubkey(raw, key) == 1 && set_names(raw, signer, name, job) &&
      add_extension(raw, signer, NID_basic_constraints,
                    is_authority ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
      add_extension(raw, signer, NID_key_usage,
                    is_authority ? "critical,keyCertSign" : "critical,digitalSignature") &&
      (is_authority ||
       (add_extension(raw, signer, NID_ext_key_usage,
                      name == kControllerName ? "serverAuth" : "clientAuth") &&
        add_extension(raw, signer, NID_subject_alt_name, ("DNS:" + name).c_str()))) &&
      X509_sign(raw, issuer_key, EVP_sha256()) > 0;
  if (!good) made.reset();
  return made;
}

Result<std::string> pem_of(X509* certificate) {
  const Memory memory(BIO_new(BIO_s_mem()));
  if (!memory || PEM_write_bio_X509(memory.get(), certificate) != 1) return failed("PEM");
  return text_of(memory.get());
}

Result<KeyPair> make_pair(X509* authority, EVP_PKEY* authority_key, const std::string& name,
                          const std::string& job) {
  const Key key(EVP_EC_gen("P-256"));
  if (!key) return failed("key");
  const Certificate made = make_certificate(key.get(), authority, authority_key, name, job);
  if (!made) return failed("certificate");
  KeyPair pair;
  RUEDA_ASSIGN_OR_RETURN(pair.certificate, pem_of(made.get()));
  const Memory memory(BIO_new(BIO_s_secmem()));
  if (!memory || PEM_write_bio_PKCS8PrivateKey(memory.get(), key.get(), nullptr, nullptr, 0,
                                               nullptr, nullptr) != 1) {
    return failed("private key");
  }
  pair.private_key = text_of(memory.get());
  return pair;
}

class OwnIssuer : public Issuer {
 public:
  OwnIssuer(Certificate authority, Key key, std::string job)
      : authority_(std::move(authority)), key_(std::move(key)), job_(std::move(job)) {}
  Result<KeyPair> issue(const std::string& name) const override {
    return make_pair(authority_.get(), key_.get(), name, job_);
  }

 private:
  const Certificate authority_;
  const Key key_;
  const std::string job_;
};

}  // namespace

std::string agent_name(int host) {
  return std::string(kSharedAgentName) + "-" + std::to_string(host);
}

Result<Certificates> make_certificates(const std::string& job_id, int hosts, bool shared,
                                       std::unique_ptr<Issuer>* issuer) {
  Key key(EVP_EC_gen("P-256"));
  if (!key) return failed("key");
  Certificate authority =
      make_certificate(key.get(), nullptr, key.get(), "rueda-authority", job_id);
  if (!authority) return failed("authority");
  Certificates made;
  RUEDA_ASSIGN_OR_RETURN(made.authority, pem_of(authority.get()));
  RUEDA_ASSIGN_OR_RETURN(made.controller,
                         make_pair(authority.get(), key.get(), kControllerName, job_id));
  for (int host = 0; host < (shared ? 1 : hosts); ++host) {
    RUEDA_ASSIGN_OR_RETURN(KeyPair agent,
                           make_pair(authority.get(), key.get(),
                                     shared ? kSharedAgentName : agent_name(host), job_id));
    made.agents.push_back(std::move(agent));
  }
  if (issuer != nullptr)
    *issuer = std::make_unique<OwnIssuer>(std::move(authority), std::move(key), job_id);
  return made;
}

Result<std::string> make_token() {
  unsigned char bytes[32];
  if (RAND_priv_bytes(bytes, sizeof(bytes)) != 1) return failed("random bytes");
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace rueda::launcher
