import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { makeIndex, sha256, type TestImage } from './test-image.ts'

/**
 * How clients authenticate. With `isPublic`, anonymous callers may pull too; with `bearer`, they need a token without a
 * password.
 */
export type RegistryAccess = {
  readonly mode: 'basic' | 'bearer'
  readonly username: string
  readonly password: string
  readonly isPublic?: boolean
}

/**
 * A fault of the registry. `status` applies to all requests, the other faults apply to requests for blobs of layers.
 */
export type RegistryFault =
  | { readonly kind: 'truncate' | 'corrupt' }
  | { readonly kind: 'status'; readonly status: number }
  /** The registry sends the first half of the blob, and the second half after `ms`. */
  | { readonly kind: 'stall'; readonly ms: number }
  /** The registry redirects the request to this address with `/DIGEST` appended. */
  | { readonly kind: 'redirect'; readonly to: string }

/** A registry over HTTP on a loopback port. It implements pulls of the OCI distribution specification. */
export type TestRegistry = {
  /** `127.0.0.1:PORT`. */
  readonly address: string
  /** All requests in order, such as `GET /v2/a/manifests/latest`. */
  readonly requests: readonly string[]
  /** The Authorization header of each request; an empty text if the request had none. */
  readonly authorizations: readonly string[]
  /** Stores an image under a name and tag. With `index`, the tag names an index that refers to the image. */
  push(name: string, tag: string, image: TestImage, options?: { readonly index?: boolean }): void
  /** Pushes the first image of an OCI layout folder. */
  pushLayout(name: string, tag: string, dir: string): Promise<void>
  /** Makes the next `times` requests fail. */
  inject(fault: RegistryFault, times: number): void
  /** Sets whether anyone may pull, or only callers with the credential. */
  setPublic(isPublic: boolean): void
  /** The number of requests that begin with this text. */
  count(prefix: string): number
  close(): Promise<void>
}

type Reply = { readonly status: number; readonly headers?: Record<string, string>; readonly body?: Buffer }

const TOKEN = 'test-token'
const ANONYMOUS_TOKEN = 'test-token-of-nobody'

/** Starts a registry; without `auth` anyone may pull. Close it when the test ends. */
export async function startRegistry(options: { readonly auth?: RegistryAccess } = {}): Promise<TestRegistry> {
  const manifests = new Map<string, Buffer>()
  const blobs = new Map<string, Buffer>()
  const layers = new Set<string>()
  const requests: string[] = []
  const authorizations: string[] = []
  const faults: RegistryFault[] = []
  const access = options.auth
  let isPublic = access === undefined || access.isPublic === true

  function mayPull(request: IncomingMessage): boolean {
    if (access === undefined) return true
    const said = request.headers.authorization
    if (access.mode === 'basic') return isPublic || said === basicOf(access)
    return said === `Bearer ${TOKEN}` || (isPublic && said === `Bearer ${ANONYMOUS_TOKEN}`)
  }

  function challenge(): Reply {
    const realm = `http://${address}/token`
    const header =
      access?.mode === 'basic' ? 'Basic realm="test"' : `Bearer realm="${realm}",service="test",scope="ignored"`
    return { status: 401, headers: { 'www-authenticate': header } }
  }

  function giveToken(request: IncomingMessage): Reply {
    const said = request.headers.authorization
    if (said === undefined && isPublic)
      return { status: 200, body: Buffer.from(JSON.stringify({ token: ANONYMOUS_TOKEN })) }
    if (access === undefined || said !== basicOf(access)) return { status: 401 }
    return { status: 200, body: Buffer.from(JSON.stringify({ access_token: TOKEN })) }
  }

  function find(path: string): Reply & { readonly isLayer?: boolean } {
    const [, name, kind, key = ''] = /^\/v2\/(.+)\/(manifests|blobs)\/([^/]+)$/.exec(path) ?? []
    if (name === undefined) return { status: 404 }
    if (kind === 'blobs') {
      const body = blobs.get(key)
      return body === undefined ? { status: 404 } : { status: 200, body, isLayer: layers.has(key) }
    }
    const body = manifests.get(`${name} ${key}`)
    if (body === undefined) return { status: 404 }
    return { status: 200, body, headers: { 'docker-content-digest': sha256(body), 'content-type': typeOf(body) } }
  }

  function answer(request: IncomingMessage, path: string): Reply & { readonly isLayer?: boolean } {
    if (path === '/token') return giveToken(request)
    return mayPull(request) ? find(path) : challenge()
  }

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = new URL(request.url ?? '/', 'http://registry').pathname
    requests.push(`${request.method ?? ''} ${path}`)
    authorizations.push(request.headers.authorization ?? '')
    const reply = answer(request, path)
    const fault = faults[0]?.kind === 'status' || reply.isLayer === true ? faults.shift() : undefined
    if (fault?.kind === 'status') response.writeHead(fault.status).end()
    else if (fault?.kind === 'redirect') response.writeHead(307, { location: `${fault.to}${path}` }).end()
    else await send(response, reply, { method: request.method ?? '', fault })
  }

  const server = createServer((request, response) => {
    handle(request, response).catch((error: unknown) => {
      response.destroy(error instanceof Error ? error : new Error('the test registry failed'))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const bound = server.address()
  const address = `127.0.0.1:${typeof bound === 'object' && bound !== null ? String(bound.port) : ''}`

  function store(name: string, keys: readonly string[], manifest: Buffer): void {
    for (const key of [...keys, sha256(manifest)]) manifests.set(`${name} ${key}`, manifest)
  }

  return {
    address,
    requests,
    authorizations,
    push(name, tag, image, { index = false } = {}) {
      for (const [digest, blob] of image.blobs) blobs.set(digest, blob)
      for (const digest of image.layerDigests) layers.add(digest)
      store(name, index ? [] : [tag], image.manifest)
      if (index) store(name, [tag], makeIndex(image))
    },
    async pushLayout(name, tag, dir) {
      const read = (digest: string): Promise<Buffer> =>
        readFile(join(dir, 'blobs/sha256', digest.slice('sha256:'.length)))
      const [first] = digestsIn(await readFile(join(dir, 'index.json')))
      if (first === undefined) throw new Error(`${dir} has no image`)
      const manifest = await read(first)
      const [configuration, ...others] = digestsIn(manifest)
      for (const digest of [configuration, ...others]) if (digest !== undefined) blobs.set(digest, await read(digest))
      for (const digest of others) layers.add(digest)
      store(name, [tag], manifest)
    },
    inject(fault, times) {
      for (let count = 0; count < times; count++) faults.push(fault)
    },
    setPublic(value) {
      isPublic = value
    },
    count: (prefix) => requests.filter((request) => request.startsWith(prefix)).length,
    async close() {
      server.closeAllConnections()
      await new Promise<void>((resolve) =>
        server.close(() => {
          resolve()
        }),
      )
    },
  }
}

type Sending = { readonly method: string; readonly fault: RegistryFault | undefined }

async function send(response: ServerResponse, reply: Reply, { method, fault }: Sending): Promise<void> {
  const body = Buffer.from(reply.body ?? Buffer.alloc(0))
  if (fault?.kind === 'corrupt') body.writeUInt8(body.readUInt8(body.length >> 1) ^ 1, body.length >> 1)
  response.writeHead(reply.status, { ...reply.headers, 'content-length': body.length })
  if (method === 'HEAD') response.end()
  else if (fault?.kind === 'truncate') response.write(body.subarray(0, body.length >> 1), () => response.destroy())
  else if (fault?.kind === 'stall') {
    response.write(body.subarray(0, body.length >> 1))
    await sleep(fault.ms, undefined, { ref: false })
    response.end(body.subarray(body.length >> 1))
  } else response.end(body)
}

function basicOf({ username, password }: RegistryAccess): string {
  return `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`
}

// In a manifest, the digest of the configuration comes first, followed by those of the layers.
function digestsIn(json: Buffer): readonly string[] {
  return [...json.toString('utf8').matchAll(/"digest":\s*"(sha256:[0-9a-f]{64})"/g)].flatMap(
    ([, digest]) => digest ?? [],
  )
}

function typeOf(manifest: Buffer): string {
  return /"mediaType":"([^"]+)"/.exec(manifest.toString('utf8'))?.[1] ?? 'application/octet-stream'
}
