import { mkdir, readFile } from 'node:fs/promises'
import type { IncomingMessage } from 'node:http'
import { request } from 'node:https'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import type { TestContext } from 'node:test'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { NO_DISK_RESERVE } from '../../../src/worker/disk-reserve.ts'
import { DEFAULT_IMAGE_LIMITS, type ImageLimits } from '../../../src/worker/images/image.ts'
import { openLoadedImages, type LoadedImages, type PullableImages } from '../../../src/worker/registry/loaded-images.ts'
import { makePullAccess } from '../../../src/worker/registry/pull-access.ts'
import { openRegistryServer, type RegistryServer } from '../../../src/worker/registry/registry-server.ts'
import { makeCertificate } from '../../support/certificates.ts'
import { writeLayout, type TestImage } from '../../support/test-image.ts'
import { makeFolder } from '../images/setup.ts'

const NEVER = new AbortController().signal
const ACCESS = makePullAccess(Buffer.alloc(32, 7))

export type World = {
  readonly dir: string
  readonly images: LoadedImages
  readonly server: RegistryServer
  /** Writes an image as a layout, and loads it. */
  readonly load: (of: TestImage, reference: string) => Promise<void>
  readonly ask: (path: string, options?: Ask) => Promise<Answer>
}
type Ask = {
  readonly method?: string
  readonly as?: string | null
  readonly headers?: Readonly<Record<string, string>>
}
export type Answer = { readonly status: number; readonly headers: IncomingMessage['headers']; readonly body: Buffer }

/** Opens a store and a registry of its images, which end with the test. `serve` makes of the images what the registry serves. */
export async function openWorld(
  t: TestContext,
  limits: Partial<ImageLimits> = {},
  storeBytes = Number.POSITIVE_INFINITY,
  serve: (images: LoadedImages) => PullableImages | Promise<PullableImages> = (images) => images,
): Promise<World> {
  const folder = await makeFolder(t)
  const dir = join(folder, 'store')
  const log = makeLog('silent')
  const images = await openLoadedImages({
    dir,
    limits: { ...DEFAULT_IMAGE_LIMITS, ...limits },
    storeBytes,
    reserve: NO_DISK_RESERVE,
    defaultRegistry: 'registry.example',
    clock: systemClock,
    log,
  })
  const { caFile, certFile, keyFile } = await makeCertificate(folder)
  const [ca, cert, key] = await Promise.all([caFile, certFile, keyFile].map((file) => readFile(file, 'utf8')))
  const tls = { cert: cert ?? '', key: key ?? '' }
  const server = await openRegistryServer({
    images: await serve(images),
    access: ACCESS,
    tls,
    host: '127.0.0.1',
    port: 0,
    log,
  })
  t.after(() => server.close())
  let layouts = 0
  return {
    dir,
    images,
    server,
    async load(of, reference) {
      layouts += 1
      const layout = join(folder, `layout-${String(layouts)}`)
      await mkdir(layout)
      await writeLayout(of, layout)
      await images.load(layout, reference, NEVER)
    },
    ask: (path, { method = 'GET', as = 'localhost/demo', headers = {} } = {}) =>
      new Promise((resolve, reject) => {
        const authorization = as === null ? {} : { authorization: authorizationOf(as) }
        // Each request has a connection of its own. The server closes that of a broken blob, and a client would learn it with its next request.
        const options = { agent: false, method, ca, servername: 'localhost', headers: { ...authorization, ...headers } }
        const asking = request(`https://127.0.0.1:${String(server.port)}${path}`, options, (reply) => {
          buffer(reply).then((body) => {
            resolve({ status: reply.statusCode ?? 0, headers: reply.headers, body })
          }, reject)
        })
        asking.once('error', reject).end()
      }),
  }
}

/** The header of a client that may read a repository. */
export function authorizationOf(repository: string): string {
  const { username, password } = ACCESS.credentialOf(repository)
  return `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`
}
