import { OPERATIONS, type OperationId } from '../../src/contract/operations.ts'
import type { Asking } from './api.ts'

/** A reply as it came; `code` and `message` are empty for one that is no refusal. */
export type Sent = { readonly status: number; readonly text: string; readonly code: string; readonly message: string }

/** Sends a request of an operation with a key, or with none, and asserts nothing of the reply. */
export async function send(
  url: string,
  { id, key, asking }: { readonly id: OperationId; readonly key: string | null; readonly asking: Asking },
): Promise<Sent> {
  const { method, path } = OPERATIONS[id]
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(asking.params?.[name] ?? ''))
  const query = new URLSearchParams(asking.query)
  const { body } = asking
  const type = body === undefined || Buffer.isBuffer(body) ? {} : { 'content-type': 'application/json' }
  const response = await fetch(`${url}${filled}${query.size === 0 ? '' : `?${query.toString()}`}`, {
    method,
    headers: { ...(key === null ? {} : { authorization: `Bearer ${key}` }), ...type, ...asking.headers },
    ...(body === undefined ? {} : { body: Buffer.isBuffer(body) ? new Uint8Array(body) : JSON.stringify(body) }),
  })
  const text = await response.text()
  const { code = '', message = '' } = response.status < 400 ? {} : JSON.parse(text).error
  return { status: response.status, text, code, message }
}
