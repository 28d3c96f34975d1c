/** Wraps a function so that it runs only at the first call. Later calls return the same result. */
export function once<T>(make: () => T): () => T {
  let made: { readonly value: T } | null = null
  return () => (made ??= { value: make() }).value
}
