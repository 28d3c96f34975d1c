/** Wraps a function so that it runs at the first call; later calls return the same result. */
export function once<T>(make: () => T): () => T {
  let made: { readonly value: T } | null = null
  return () => (made ??= { value: make() }).value
}
