defmodule Tenure.NoNoncense.BehaviourTest do
  # Compiles modules under names that others use: alone.
  use ExUnit.Case, async: false

  @file_name Path.expand("../lib/tenure/no_noncense/lease_strategy.ex", __DIR__)
  @strategy Tenure.NoNoncense.LeaseStrategy

  # The same callbacks as NoNoncense's behaviour, and what its users of `use` get is not needed.
  @behaviour_source """
  defmodule NoNoncense.MachineId.Strategy do
    @callback acquire(pos_integer(), keyword()) ::
                {:ok, 0..511, term(), pos_integer()} | {:error, term()}
    @callback renew(term(), pos_integer(), keyword()) ::
                {:ok, term(), pos_integer()} | {:error, :lost, term()} | {:error, :retry, term()}
    @callback release(term(), keyword()) :: :ok
    @callback deterministic?() :: boolean()
  end
  """

  setup do
    Code.put_compiler_option(:ignore_module_conflict, true)

    on_exit(fn ->
      delete(NoNoncense.MachineId.Strategy)
      compiled()
      Code.put_compiler_option(:ignore_module_conflict, false)
    end)
  end

  defp delete(module) do
    :code.purge(module)
    :code.delete(module)
  end

  # What the compiler said on the way.
  defp compiled do
    ExUnit.CaptureIO.capture_io(:stderr, fn -> Code.compile_file(@file_name) end)
  end

  defp behaviours, do: for({:behaviour, list} <- @strategy.__info__(:attributes), module <- list, do: module)

  if not Code.ensure_loaded?(NoNoncense.MachineId.Strategy) do
    test "without NoNoncense it compiles, and is a plain module" do
      assert compiled() == ""
      assert behaviours() == []
      assert function_exported?(@strategy, :acquire, 2)
    end
  end

  test "with NoNoncense it has its behaviour, and none of its callbacks is missing" do
    Code.compile_string(@behaviour_source)
    assert compiled() == ""
    assert behaviours() == [NoNoncense.MachineId.Strategy]
    # apply: the module is not there when this is compiled.
    callbacks = apply(NoNoncense.MachineId.Strategy, :behaviour_info, [:callbacks])
    assert callbacks -- @strategy.__info__(:functions) == []
    assert {:acquire, 2} in callbacks
  end

  test "a callback that it lacked would be told of" do
    Code.compile_string(
      String.replace(@behaviour_source, "@callback deterministic?", "@callback undeterministic?")
    )

    assert compiled() =~ "undeterministic?/0"
  end
end
