import type * as microsandbox from 'microsandbox'
import type { Cloud } from './cloud.ts'

type Sdk = typeof microsandbox

/** Loads the public client. From then on it sends its requests to `url`, by default to the cloud itself. */
export async function loadClient(cloud: Cloud, url = `http://${cloud.host}:${String(cloud.port)}`): Promise<Sdk> {
  const sdk = await import('microsandbox')
  // Not by the variables of this process: the client reads them once, and each benchmark has a cloud of its own.
  sdk.setDefaultBackend({ kind: 'cloud', url, apiKey: (cloud.headers['authorization'] ?? '').replace('Bearer ', '') })
  return sdk
}

/** Deletes a sandbox by its name. Resolves with its id. */
export async function deleteByName(cloud: Cloud, name: string): Promise<string> {
  const { body } = await cloud.call('GET', `/v1/sandboxes/by-name/${name}`)
  const id = String(body['id'])
  await cloud.call('DELETE', `/v1/sandboxes/${id}`)
  return id
}
