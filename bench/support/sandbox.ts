import type { Cloud } from './cloud.ts'
import { ociUnavailableReason } from './oci.ts'

/** A running sandbox. */
export type RunningSandbox = { readonly id: string; readonly name: string }

const TRIES = 20

/** Starts a real sandbox. It retries, because starts fail until the server's first start has created the demo image. */
export async function startSandbox(cloud: Cloud, prefix: string, memory_mib = 512): Promise<RunningSandbox> {
  const reason = ociUnavailableReason()
  if (reason !== null) throw new Error(`no real sandbox can be started here: ${reason}`)
  for (let tries = 1; ; tries++) {
    const name = `${prefix}-${String(tries)}`
    const { body } = await cloud.call('POST', '/v1/sandboxes?start=true&wait_for=running', {
      name,
      image: { type: 'oci', reference: 'localhost/demo' },
      resources: { vcpus: 1, memory_mib },
    })
    if (body['status'] === 'running') return { id: String(body['id']), name }
    if (tries === TRIES) throw new Error(`no sandbox could be started: ${JSON.stringify(body)}`)
    await cloud.call('DELETE', `/v1/sandboxes/${String(body['id'])}`)
  }
}
