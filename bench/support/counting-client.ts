import type { ApiClient } from '../../src/worker/kubernetes/api-client.ts'

/** A client that counts what it sends, by method and kind of path, such as `POST pods`. */
export function countRequests(client: ApiClient, counts: Map<string, number>): ApiClient {
  const count = (method: string, path: string): void => {
    const key = `${method} ${kindOf(path)}`
    counts.set(key, (counts.get(key) ?? 0) + 1)
  }
  return {
    request(method, path, ...rest) {
      count(method, path)
      return client.request(method, path, ...rest)
    },
    open(path, signal) {
      count('GET', path)
      return client.open(path, signal)
    },
    openSocket(path, protocol, signal) {
      count('GET', path)
      return client.openSocket(path, protocol, signal)
    },
    close: () => {
      client.close()
    },
  }
}

/** The kind of a path: `pods`, `pods/NAME`, `pods/NAME/exec`, or `pods?watch`. */
function kindOf(path: string): string {
  const [resource = '', query = ''] = path.split('?', 2)
  const words = resource.replace(/^\/apis?\/(?:[\w.]+\/)?v\d\w*\/(?:namespaces\/[^/]+\/(?=.))?/, '').split('/')
  const named = words.map((word, at) => (at === 1 ? 'NAME' : word)).join('/')
  return query.includes('watch=true') ? `${named}?watch` : named
}
