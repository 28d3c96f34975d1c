/**
 * Makes a function that applies values one at a time. While one is applied, only the latest of the others waits. `apply` must not
 * reject.
 */
export function applyLatest<Value>(apply: (value: Value) => Promise<void>): (value: Value) => void {
  let waiting: { readonly value: Value } | null = null
  let isApplying = false

  async function applyAll(): Promise<void> {
    isApplying = true
    while (waiting !== null) {
      const { value } = waiting
      waiting = null
      await apply(value)
    }
    isApplying = false
  }

  return (value) => {
    waiting = { value }
    if (!isApplying) void applyAll()
  }
}
