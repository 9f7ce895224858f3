"""Training loops as people write them: closures, GANs, AMP, clipping, accumulation, reruns."""

import copy
import io

import rueda.torch as hvd
import torch
from expect import raises
from test_optimizer import average, backward, batch, check, gradients, make_model, wrap
from worlds import ranks

WORLD = "torch"


def everyone(values):
    return [torch.equal(other, values) for other in hvd.allgather(values[None])]


def weights(*models):
    return torch.cat([p.detach().flatten() for m in models for p in m.parameters()])


def whole_batch(step=0):
    return torch.cat([batch(r, step) for r in range(hvd.size())])


@ranks(1, 3)
def test_a_closure_that_computes_gradients_has_them_reduced_before_it_returns():
    for make in (
        lambda m: torch.optim.LBFGS(m.parameters(), max_iter=6, line_search_fn="strong_wolfe"),
        lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=4),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
    ):
        model, alone = make_model().double(), make_model().double()
        optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters())
        plain = make(alone)

        def closure_of(network, owner, x):
            def closure():
                owner.zero_grad()
                loss = network(x.double()).square().mean()
                loss.backward()
                return loss

            return closure

        for step in range(3):
            mine = optimizer.step(closure_of(model, optimizer, batch(hvd.rank(), step)))
            expected = plain.step(closure_of(alone, plain, whole_batch(step)))
            torch.testing.assert_close(mine.detach(), expected.detach())
        torch.testing.assert_close(weights(model), weights(alone), rtol=1e-6, atol=1e-8)
        assert all(everyone(weights(model)))


@ranks(3)
def test_a_closure_without_gradients_on_some_rank_and_without_a_loss():
    model = make_model()
    optimizer = wrap(model)

    def closure():
        optimizer.zero_grad()
        if hvd.rank() == 0:
            backward(model)

    assert optimizer.step(closure) is None
    expected = gradients(make_model(), [[batch(0)]])[0]
    check(model, [grad / hvd.size() for grad in expected])


def gan():
    torch.manual_seed(1)
    generator = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    torch.manual_seed(2)
    return generator, torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


def gan_step(generator, critic, of_generator, of_critic, x, zero_grad_of, critic_at_rest):
    """The usual two steps; both networks have parameters of the same names and shapes."""
    z = x[:, :3]
    zero_grad_of(critic, of_critic)
    (critic(x).mean() - critic(generator(z).detach()).mean()).backward()
    of_critic.step()
    zero_grad_of(generator, of_generator)
    with critic_at_rest(of_critic):
        (-critic(generator(z)).mean()).backward()
    of_generator.step()


@ranks(3)
def test_two_optimizers_of_a_gan():
    class Nothing:
        def __enter__(self):
            pass

        def __exit__(self, *exception):
            pass

    ways = {
        # The critic's gradients of the generator's loss travel for nothing, and are thrown away.
        "model.zero_grad": (lambda model, _: model.zero_grad(set_to_none=True), lambda _: Nothing()),
        "no_sync": (lambda _, optimizer: optimizer.zero_grad(), lambda of: of.no_sync()),
    }
    for way, (zero_grad_of, critic_at_rest) in ways.items():
        for named in (True, False):
            generator, critic = gan()
            distributed = [
                hvd.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.1),
                    model.named_parameters() if named else None,
                )
                for model in (generator, critic)
            ]
            alone = gan()
            plain = [torch.optim.SGD(model.parameters(), lr=0.1) for model in alone]
            for step in range(4):
                x = batch(hvd.rank(), step)
                gan_step(generator, critic, *distributed, x, zero_grad_of, critic_at_rest)
                together = whole_batch(step)
                gan_step(*alone, *plain, together, ways["model.zero_grad"][0], lambda _: Nothing())
            torch.testing.assert_close(weights(generator, critic), weights(*alone)), way
            assert all(everyone(weights(generator, critic)))


@ranks(3)
def test_two_backward_passes_of_a_critic_and_gradients_thrown_away_between():
    """DCGAN's loop: real and fake apart; the generator's loss in between counts for nothing."""
    generator, critic = gan()
    alone_generator, alone_critic = gan()
    optimizer = wrap(critic, backward_passes_per_step=2)
    plain = torch.optim.SGD(alone_critic.parameters(), lr=0.1)
    for step in range(3):
        for model, make, owner, x in (
            (critic, generator, optimizer, batch(hvd.rank(), step)),
            (alone_critic, alone_generator, plain, whole_batch(step)),
        ):
            model.zero_grad()
            model(x).mean().backward()
            (-model(make(x[:, :3]).detach()).mean()).backward()
            owner.step()
            (-model(make(x[:, :3])).mean()).backward()
    torch.testing.assert_close(weights(critic), weights(alone_critic))
    critic.zero_grad()
    optimizer.step()


@ranks(1, 3)
def test_overflow_on_one_rank_is_seen_by_all():
    """torch.amp.GradScaler on the CPU, with and without the synchronize() of Horovod's scripts."""
    if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
        return  # PyTorch before 2.3 has it for CUDA only

    def plain(scaler, optimizer, model):
        scaler.step(optimizer)

    def unscale_and_clip(scaler, optimizer, model):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        scaler.step(optimizer)

    def as_in_horovods_documentation(scaler, optimizer, model):
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)

    def helper(scaler, optimizer, model):
        scaler.unscale_(optimizer)
        optimizer.clip_grad_norm_(1e6)
        scaler.step(optimizer)

    makes = [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1)]
    if hvd.size() == 3:
        makes.append(lambda p: torch.optim.Adam(p, lr=0.1, fused=True))
    for way in (plain, unscale_and_clip, as_in_horovods_documentation, helper):
        for make in makes:
            model, alone = make_model(), make_model()
            optimizer = hvd.DistributedOptimizer(
                make(model.parameters()), model.named_parameters()
            )
            reference = make(alone.parameters())
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
            for step in range(4):
                overflows = step == 1
                optimizer.zero_grad()
                loss = model(batch(hvd.rank(), step)).square().mean()
                if overflows and hvd.rank() == hvd.size() - 1:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                before = weights(model).clone()
                way(scaler, optimizer, model)
                scaler.update()
                assert torch.equal(before, weights(model)) == overflows, (way.__name__, step)
                assert scaler.get_scale() == (1024.0 if step < 1 else 512.0)
                if not overflows:
                    reference.zero_grad()
                    alone(whole_batch(step)).square().mean().backward()
                    reference.step()
            torch.testing.assert_close(weights(model), weights(alone), rtol=1e-4, atol=1e-5)
            assert all(everyone(weights(model)))


@ranks(1, 3)
def test_clipping_waits_for_the_reduced_gradients():
    expected = average(gradients(make_model(), [[batch(r)] for r in range(hvd.size())]))
    norm = torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in expected]))
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    result = optimizer.clip_grad_norm_(0.5 * norm)
    torch.testing.assert_close(result, norm)
    assert all(everyone(result.reshape(1)))
    check(model, [grad / 2 for grad in expected], rtol=1e-4, atol=1e-6)
    before = weights(model)
    optimizer.step()  # neither waits nor warns
    torch.testing.assert_close(
        weights(model), before - 0.05 * torch.cat([g.flatten() for g in expected])
    )
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


@ranks(3)
def test_gradients_changed_while_they_travel_are_refused():
    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    def zero(model):
        model.zero_grad(set_to_none=False)

    for change in (clip, zero):
        for options in ({}, {"compression": hvd.Compression.bf16}, {"groups": 1}):
            model = make_model()
            optimizer = wrap(model, **options)
            backward(model)
            change(model)
            with raises(RuntimeError, "changed while they were being reduced", "optimizer.clip"):
                optimizer.step()
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
            assert all(everyone(weights(model)))


@ranks(3)
def test_no_sync_accumulates_any_number_of_passes():
    size = hvd.size()
    steps = [[batch(r, 0), batch(r, 1), batch(r, 2)] for r in range(size)]
    expected = average(gradients(make_model(), steps))
    model = make_model()
    optimizer = wrap(model)
    with optimizer.no_sync():
        backward(model, 0)
        backward(model, 1)
    check(model, gradients(make_model(), [steps[hvd.rank()][:2]])[0])
    backward(model, 2)
    optimizer.synchronize()
    check(model, expected)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()
    backward(model)
    with raises(AssertionError, "more than backward_passes_per_step times"):
        with optimizer.no_sync():
            backward(model)
    with raises(RuntimeError, "changed"):
        optimizer.step()


@ranks(1, 3)
def test_gradients_reduced_once_however_many_passes_were_missing():
    """Two of three announced passes, then step(): what is there is reduced."""
    model = make_model()
    optimizer = wrap(model, backward_passes_per_step=3)
    steps = [[batch(r, 0), batch(r, 1)] for r in range(hvd.size())]
    expected = average(gradients(make_model(), steps))
    backward(model, 0)
    backward(model, 1)
    optimizer.synchronize()
    check(model, expected)


@ranks(3)
def test_an_embedding_that_some_ranks_do_not_use():
    """Its gradient is sparse; ranks without one take part with no rows."""
    for first_user in (0, hvd.size() - 1):
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 2, sparse=True)
        other = torch.nn.Linear(2, 1)
        named = [("t", table.weight)] + list(other.named_parameters())
        inner = torch.optim.SGD([p for _, p in named], lr=1.0)
        optimizer = hvd.DistributedOptimizer(inner, named)
        for step in range(4):
            optimizer.zero_grad()
            uses = step > 0 and (hvd.rank() == first_user or step == 3)  # nobody in the first step
            x = table(torch.tensor([1, 1, 4])) if uses else torch.ones(3, 2)
            other(x.detach()).sum().backward()
            if uses:
                x.sum().backward()
            before = table.weight.detach().clone()
            optimizer.step()
            users = {0: 0, 3: hvd.size()}.get(step, 1)
            rows = torch.tensor([0.0, 2, 0, 0, 1])[:, None].expand(5, 2) * users / hvd.size()
            torch.testing.assert_close(table.weight.detach(), before - rows)


@ranks(3)
def test_a_gradient_that_is_sparse_here_and_dense_there_is_refused():
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("t", weight)])
    with optimizer.no_sync():
        sparse = hvd.rank() == 0
        torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=sparse).sum().backward()
    with raises(ValueError, "t is sparse on one rank and dense on another", "sparse_as_dense"):
        optimizer.step()


@ranks(1, 3)
def test_a_cell_run_again_wraps_the_same_model_again():
    model = make_model()
    first = wrap(model)
    backward(model)
    first.step()
    second = wrap(model)
    second.zero_grad()
    backward(model)
    second.synchronize()
    check(model, average(gradients(copy.deepcopy(model), [[batch(r)] for r in range(hvd.size())])))
    with second.skip_synchronize():
        second.step()
    if hvd.size() > 1:
        with raises(RuntimeError, "later DistributedOptimizer", "0.weight"):
            first.step()
    with raises(ValueError, "already"):
        hvd.DistributedOptimizer(second)


@ranks(3)
def test_models_and_optimizers_are_saved_and_copied_as_usual():
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    optimizer.step()
    stream = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stream)
    torch.save(model, io.BytesIO())
    stream.seek(0)
    restored = torch.load(stream)
    model.load_state_dict(restored["model"])
    optimizer.load_state_dict(restored["optimizer"])
    if hvd.rank() == 0:  # a copy is rank 0's own: its gradients go nowhere
        backward(copy.deepcopy(model))
    hvd.barrier()
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert all(everyone(weights(model)))


@ranks(3)
def test_a_flipped_bit_is_found_within_the_chosen_number_of_steps_and_named():
    model = make_model()
    hvd.check_replicas(model)
    hvd.check_replicas(model.state_dict())
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    optimizer.check_replicas(every=3)
    drifted, found = hvd.size() - 1, None
    for step in range(6):
        optimizer.zero_grad()
        backward(model, step)
        if step == 3 and hvd.rank() == drifted:
            with torch.no_grad():
                model[2].weight.view(torch.int32)[1, 2] ^= 1
        try:
            optimizer.step()
        except hvd.ReplicasDiffer as error:
            found = step, error
            break
    assert found and found[0] == 5, found
    assert found[1].name == "2.weight" and found[1].ranks == [drifted], vars(found[1])
    assert f"'2.weight' on rank {drifted}" in str(found[1])
    optimizer.check_replicas(every=None)
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    hvd.check_replicas(optimizer)
    with raises(hvd.ReplicasDiffer, "tensors"):
        hvd.check_replicas([("a", torch.ones(1))] * (1 + hvd.rank()))
    with raises(hvd.ReplicasDiffer, "'b'", "2 later tensors differ too"):
        different = torch.full((3,), float(hvd.rank()))
        same = ("a", torch.ones(2, dtype=torch.bfloat16))
        hvd.check_replicas([same, ("b", different), ("c", different), ("d", different.double())])
    with raises(ValueError, "every"):
        optimizer.check_replicas(every=0)


@ranks(3)
def test_an_optimizer_of_a_process_set_reduces_over_its_members_only():
    edges = hvd.add_process_set([0, 2])
    for op, more in ((hvd.Average, {}), (hvd.Sum, {"groups": 2}), (hvd.Adasum, {})):
        model, alone = make_model(), make_model()
        options = {"op": op, "process_set": edges, **more}
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(batch(hvd.rank(), step)).square().mean().backward()
            optimizer.step()
            if not edges.included() or op == hvd.Average:
                seen = [hvd.rank()] if not edges.included() else edges.ranks
                plain.zero_grad()
                for rank in seen:
                    (alone(batch(rank, step)).square().mean() / len(seen)).backward()
                plain.step()
        if not edges.included() or op == hvd.Average:
            torch.testing.assert_close(weights(model), weights(alone), rtol=1e-6, atol=1e-7)
        same = everyone(weights(model))
        assert same == ([False, True, False] if hvd.rank() == 1 else [True, False, True])
    optimizer.check_replicas(every=1)  # of the members
    optimizer.zero_grad()
    model(batch(hvd.rank())).square().mean().backward()
    optimizer.step()
    unknown = hvd.ProcessSet([0])
    with raises(ValueError, "does not exist"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            process_set=unknown,
        )
