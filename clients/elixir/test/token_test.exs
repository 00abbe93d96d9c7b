defmodule Tenure.NoNoncense.TokenTest do
  # The end of a token: RELEASE, and what follows where its answer is lost.
  use ExUnit.Case, async: true

  import StrategyCase
  alias Tenure.NoNoncense.LeaseStrategy

  @duration 600_000

  # A lease whose RELEASE did not arrive.
  defp half_released do
    {fake, options, lease} = held()
    Fake.push(fake, List.duplicate({:error, :timeout}, 3))
    :ok = LeaseStrategy.release(lease, options)
    {fake, options, lease}
  end

  calm_test "a release gives back by token and fence" do
    {fake, options, lease} = held()
    Fake.push(fake, [Fake.released()])
    assert LeaseStrategy.release(lease, options) == :ok
    assert [_, %{operation: "RELEASE", args: %{"token" => token, "fence" => 17}}] = Fake.asked(fake)
    assert token == lease.token
  end

  calm_test "a release is always :ok, and asks each endpoint once at most" do
    for reply <- [
          {:error, :refused},
          Fake.page(500),
          Fake.problem(504, "outcome_unknown"),
          fn _ -> raise "no" end
        ] do
      {fake, options, lease} = held()
      Fake.push(fake, List.duplicate(reply, 9))
      assert LeaseStrategy.release(lease, options) == :ok
      assert Fake.operations(fake) == ["ACQUIRE", "RELEASE", "RELEASE", "RELEASE"]
    end
  end

  calm_test "once it is retired it is never renewed" do
    {fake, options, lease} = held()
    Fake.push(fake, [Fake.released()])
    :ok = LeaseStrategy.release(lease, options)
    # As from NoNoncense's cache, after its manager was started again.
    Fake.push(fake, [Fake.held(true), Fake.held(false)])
    assert LeaseStrategy.renew(lease, @duration, options) == {:error, :retry, :retired}
    assert {:error, :lost, _} = LeaseStrategy.renew(lease, @duration, options)

    Fake.push(fake, [Fake.holders([]), Fake.granted(3, 18), Fake.lost("expired")])
    assert {:ok, 3, again, _ttl} = LeaseStrategy.acquire(@duration, options)
    assert {:error, :lost, :expired} = LeaseStrategy.renew(again, @duration, options)

    for old <- [lease, again] do
      Fake.push(fake, [Fake.held(true)])
      assert {:error, :retry, :retired} = LeaseStrategy.renew(old, @duration, options)
    end

    assert Fake.operations(fake) == ~w(ACQUIRE RELEASE HELD HELD HOLDERS ACQUIRE RENEW HELD HELD)
  end

  calm_test "a RELEASE that did not arrive is repeated before the next ACQUIRE, which is by another token" do
    for over <- [Fake.released(true), Fake.released(false)] do
      {fake, options, lease} = half_released()
      Fake.push(fake, [Fake.holders([{3, "pod-1", 17}]), over, Fake.granted(3, 18)])
      assert {:ok, 3, again, _ttl} = LeaseStrategy.acquire(@duration, options)
      assert again.token != lease.token

      assert [_, %{operation: "RELEASE", args: args}, acquire] = Enum.take(Fake.asked(fake), -3)
      assert args == %{"token" => lease.token, "fence" => 17}
      assert %{operation: "ACQUIRE", args: %{"token" => token}} = acquire
      assert token == again.token

      # What is live now is the new token's.
      Fake.push(fake, [Fake.holders([{3, "pod-1", 18}]), Fake.granted(3, 18)])
      assert {:ok, 3, ^again, _ttl} = in_process(fn -> LeaseStrategy.acquire(@duration, options) end)
      assert ["HOLDERS", "ACQUIRE"] = Enum.take(Fake.operations(fake), -2)
    end
  end

  calm_test "a RELEASE that did arrive is not repeated" do
    {fake, options, _lease} = half_released()
    Fake.push(fake, [Fake.holders([]), Fake.granted(3, 18)])
    assert {:ok, 3, _again, _ttl} = LeaseStrategy.acquire(@duration, options)
    assert ["HOLDERS", "ACQUIRE"] = Enum.take(Fake.operations(fake), -2)
  end

  calm_test "as long as it cannot be given back nothing else is asked for" do
    {fake, options, _lease} = half_released()
    Fake.push(fake, [Fake.holders([{3, "pod-1", 17}])])
    assert LeaseStrategy.acquire(@duration, options) == {:error, :refused}
    refute "ACQUIRE" in tl(Fake.operations(fake))

    Fake.push(fake, [Fake.holders([{3, "pod-1", 17}]), Fake.released(), Fake.granted(3, 18)])
    assert {:ok, 3, _again, _ttl} = LeaseStrategy.acquire(@duration, options)
  end

  calm_test "a successor's grant is not given back" do
    {fake, options, _lease} = half_released()
    Fake.push(fake, [Fake.holders([{3, "pod-1", 18}]), Fake.held(false)])
    assert LeaseStrategy.acquire(@duration, options) == {:error, :identity_in_use}
    assert ["HOLDERS", "HELD"] = Enum.take(Fake.operations(fake), -2)
  end

  calm_test "of a grant that could not be used is given back likewise" do
    {fake, options} = start([Fake.granted(512, 17)])
    assert LeaseStrategy.acquire(@duration, options) == {:error, :id_out_of_range}
    Fake.push(fake, [Fake.holders([{512, "pod-1", 17}]), Fake.released(), Fake.granted(3, 18)])
    assert {:ok, 3, _lease, _ttl} = LeaseStrategy.acquire(@duration, options)
  end
end
