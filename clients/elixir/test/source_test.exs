defmodule SourceTest do
  # What newer versions of Elixir and OTP than this one refuse, or warn of.
  use ExUnit.Case, async: true

  defp sources do
    for file <- Path.wildcard(Path.expand("../{lib,test}/**/*.{ex,exs}", __DIR__)),
        do: {file, file |> File.read!() |> Code.string_to_quoted!()}
  end

  defp nodes(ast), do: ast |> Macro.prewalk([], &{&1, [&1 | &2]}) |> elem(1)

  # On OTP 28 a compiled one is a reference, which no module can hold.
  test "no module attribute holds a regex" do
    for {file, ast} <- sources(), {:@, _, [{name, _, [value]}]} <- nodes(ast) do
      refute Enum.any?(nodes(value), &match?({:sigil_r, _, _}, &1)), "@#{name} in #{file}"
    end
  end

  # Since 1.17.
  test "no function's head holds a range without its step" do
    for {file, ast} <- sources(), {kind, _, [head | _]} when kind in [:def, :defp] <- nodes(ast) do
      with {name, _, [_ | _] = args} <- unguarded(head) do
        refute Enum.any?(nodes(args), &match?({:.., _, [_, _]}, &1)), "#{name} in #{file}"
      end
    end
  end

  defp unguarded({:when, _, [head, _guard]}), do: head
  defp unguarded(head), do: head
end
