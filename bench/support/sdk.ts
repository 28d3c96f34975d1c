import type * as microsandbox from 'microsandbox'
import type { Cloud } from './cloud.ts'

type Sdk = typeof microsandbox

/** Loads the public client, which reads its settings from the variables of this process. */
export async function loadClient(cloud: Cloud): Promise<Sdk> {
  process.env['MSB_BACKEND'] = 'cloud'
  process.env['MSB_API_KEY'] = (cloud.headers['authorization'] ?? '').replace('Bearer ', '')
  useUrl(`http://${cloud.host}:${String(cloud.port)}`)
  return await import('microsandbox')
}

/** Makes the public client send its next requests to this URL. */
export function useUrl(url: string): void {
  process.env['MSB_API_URL'] = url
}

/** Deletes a sandbox by its name. Resolves with its id. */
export async function deleteByName(cloud: Cloud, name: string): Promise<string> {
  const { body } = await cloud.call('GET', `/v1/sandboxes/by-name/${name}`)
  const id = String(body['id'])
  await cloud.call('DELETE', `/v1/sandboxes/${id}`)
  return id
}
