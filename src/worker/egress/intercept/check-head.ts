import { makeViolationFinder, type ViolationFinder } from '../placeholders/find-placeholders.ts'
import type { HostSecrets } from '../placeholders/host-secrets.ts'
import { refuseViolation } from './request-body.ts'
import type { RequestHead } from './request-head.ts'

/** Throws `RequestRefused` if a head has a placeholder that must not go to its host. */
export function checkHead(
  { method, target, fields }: Pick<RequestHead, 'method' | 'target' | 'fields'>,
  secrets: HostSecrets,
): void {
  const find = makeViolationFinder(secrets)
  const violations = [
    find(`${method} ${target}`, 'request_line'),
    ...fields.map(({ name, value }) => find(`${name}: ${value}`, 'header')),
    ...fields.map(({ name, value }) => findInBasic(name, value, find)),
  ].filter((violation) => violation !== null)
  for (const action of ['block_and_terminate', 'block_and_log', 'block'] as const)
    refuseViolation(violations.find((violation) => violation.action === action) ?? null)
}

function findInBasic(name: string, value: string, find: ViolationFinder): ReturnType<ViolationFinder> {
  if (!['authorization', 'proxy-authorization'].includes(name.toLowerCase())) return null
  const [, credentials = ''] = /^basic[ ]+(\S*)$/i.exec(value) ?? []
  const found = find(Buffer.from(credentials, 'base64').toString('latin1'), 'header')
  return found === null ? null : { ...found, form: 'basic' }
}
