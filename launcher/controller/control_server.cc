#include "launcher/controller/control_server.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <proto/control.grpc.pb.h>

#include "collectives/host/event_fd.h"
#include "launcher/controller/acceptor.h"
#include "launcher/controller/control_hub.h"
#include "launcher/controller/control_streams.h"
#include "launcher/hosts/limits.h"

namespace rueda::launcher {
namespace {

class Service : public control::Control::CallbackService {
 public:
  explicit Service(Hub* hub) : hub_(hub) {}
  grpc::ServerBidiReactor<control::AgentMessage, control::ControllerMessage>* Attach(
      grpc::CallbackServerContext* context) override {
    return new AgentStream(hub_, context);
  }
  grpc::ServerReadReactor<control::OutputMessage>* Output(grpc::CallbackServerContext* context,
                                                          control::OutputEnd*) override {
    return new OutputStream(hub_, Peer(*context));
  }

 private:
  Hub* const hub_;
};

class GrpcControlServer : public ControlServer {
 public:
  GrpcControlServer(const Setup& setup, UniqueFd wake)
      : listen_on_(setup.addresses),
        port_(setup.port),
        hub_(setup, std::move(wake)),
        service_(&hub_) {}
  ~GrpcControlServer() override { stop(); }

  Status open(Setup setup) {
    RUEDA_ASSIGN_OR_RETURN(acceptor_, setup.bound.empty()
                                          ? Acceptor::listen(setup.addresses, setup.port)
                                          : Acceptor::listen(std::move(setup.bound)));
    grpc::SslServerCredentialsOptions tls(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = setup.certificates.authority;
    tls.pem_key_cert_pairs.push_back(
        {setup.certificates.controller.private_key, setup.certificates.controller.certificate});
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxControlBytes);
    builder.AddChannelArgument("grpc.server_handshake_timeout_ms",
                               static_cast<int>(1000 * kHandshakeLimit.count()));
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8192);
    builder.RegisterService(&service_);
    auto door = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::SslServerCredentials(tls));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return internal_error("gRPC's server cannot be started");
    door_ = std::move(door);
    accept();
    return {};
  }

  const std::vector<std::string>& addresses() const override { return acceptor_->addresses(); }
  int fd() const override { return hub_.fd(); }
  std::vector<AgentEvent> take() override { return hub_.take(); }
  void send(int host, control::ControllerMessage message) override {
    hub_.send(host, std::move(message));
  }
  void beat() override { hub_.beat(); }
  void hold_output(bool held) override { hub_.hold_output(held); }
  void stop_listening() override {
    acceptor_->stop();
    listens_ = false;
  }
  Status listen() override {
    if (listens_) return {};
    RUEDA_ASSIGN_OR_RETURN(acceptor_, Acceptor::listen(listen_on_, port_));
    accept();
    return {};
  }
  Status listen_for_return(std::vector<ListeningSocket> bound) override {
    if (return_acceptor_ != nullptr) return {};
    if (bound.empty()) return listen();
    RUEDA_ASSIGN_OR_RETURN(return_acceptor_, Acceptor::listen(std::move(bound)));
    accept(return_acceptor_.get());
    return {};
  }
  void end_return() override { return_acceptor_.reset(); }
  void forget_host(int host) override { hub_.forget_host(host); }
  void add_host(const std::string& name) override { hub_.add_host(name); }
  void taken_over() override { hub_.taken_over(); }
  void stop() override {
    if (acceptor_ != nullptr) acceptor_->stop();
    return_acceptor_.reset();
    if (server_ == nullptr) return;
    hub_.close();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

 private:
  void accept() {
    accept(acceptor_.get());
    listens_ = true;
  }
  void accept(Acceptor* acceptor) {
    acceptor->start(
        [door = door_](int listener, UniqueFd connection) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
          parameters.listener_fd = listener;
          parameters.fd = connection.release();
          door->HandleNewConnection(&parameters);
        },
        hub_.hosts());
  }

  const std::vector<std::string> listen_on_;
  const int port_;
  Hub hub_;
  Service service_;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;
  std::unique_ptr<Acceptor> acceptor_, return_acceptor_;
  bool listens_ = false;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::start(Setup setup) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // strangers must not fill the user's terminal
  RUEDA_ASSIGN_OR_RETURN(UniqueFd wake, host::make_event_fd());
  auto server = std::make_unique<GrpcControlServer>(setup, std::move(wake));
  RUEDA_RETURN_IF_ERROR(server->open(std::move(setup)));
  return std::unique_ptr<ControlServer>(std::move(server));
}

}  // namespace rueda::launcher
