import { findViolation } from './find-placeholders.ts'
import type { HostSecrets } from './host-secrets.ts'
import { refuseViolation } from './request-body.ts'
import type { RequestHead } from './request-head.ts'

/** Throws `RequestRefused` if a head has a placeholder that must not go to its host. */
export function checkHead(
  { method, target, fields }: Pick<RequestHead, 'method' | 'target' | 'fields'>,
  secrets: HostSecrets,
): void {
  const violations = [
    findViolation(`${method} ${target}`, secrets, 'request_line'),
    ...fields.map(({ name, value }) => findViolation(`${name}: ${value}`, secrets, 'header')),
    ...fields.map(({ name, value }) => findInBasic(name, value, secrets)),
  ].filter((violation) => violation !== null)
  for (const action of ['block_and_terminate', 'block_and_log', 'block'] as const)
    refuseViolation(violations.find((violation) => violation.action === action) ?? null)
}

function findInBasic(name: string, value: string, secrets: HostSecrets): ReturnType<typeof findViolation> {
  if (!['authorization', 'proxy-authorization'].includes(name.toLowerCase())) return null
  const [, credentials = ''] = /^basic[ ]+(\S*)$/i.exec(value) ?? []
  const found = findViolation(Buffer.from(credentials, 'base64').toString('latin1'), secrets, 'header')
  return found === null ? null : { ...found, form: 'basic' }
}
