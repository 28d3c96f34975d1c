import { resolve } from 'node:path'
import { parseCidr, type Cidr } from '../domain/cidr.ts'
import type { Setting } from './setting.ts'

/** Accepts blocks of addresses, separated by commas. */
const cidrs: Setting<readonly Cidr[]>['parse'] = (seen) => {
  const blocks = seen.split(',').map((text) => parseCidr(text.trim()))
  const value = blocks.filter((block) => block !== null)
  return value.length === blocks.length
    ? { value }
    : { accepted: 'addresses and CIDR blocks with commas between, such as 127.0.0.1,10.0.0.0/8' }
}

const file: Setting<string>['parse'] = (seen) =>
  seen === '' ? { accepted: 'the path of a file' } : { value: resolve(seen) }

const isTrue: Setting<boolean>['parse'] = (seen) =>
  seen === 'true' || seen === 'false' ? { value: seen === 'true' } : { accepted: 'true, false' }

/** The settings of the connections between machines. */
export const CONNECTION_SETTINGS = {
  tlsCert: {
    variable: 'SANDYARD_TLS_CERT',
    flag: 'tls-cert',
    fallback: null,
    unit: 'file',
    meaning:
      'the certificate of the API with its chain, in PEM; read again when it changes (default beyond loopback: a certificate of its own, which join tokens pin)',
    parse: file,
  } satisfies Setting<string>,
  tlsKey: {
    variable: 'SANDYARD_TLS_KEY',
    flag: 'tls-key',
    fallback: null,
    unit: 'file',
    meaning: 'the private key of the certificate, in PEM; read again when it changes',
    parse: file,
  } satisfies Setting<string>,
  insecure: {
    variable: 'SANDYARD_INSECURE',
    flag: 'insecure',
    fallback: 'false',
    unit: 'switch',
    meaning:
      'allows plain HTTP beyond loopback: a server then listens without TLS, and a worker joins by http://; anyone on the network path can read and change everything',
    parse: isTrue,
  } satisfies Setting<boolean>,
  trustedProxies: {
    variable: 'SANDYARD_TRUSTED_PROXIES',
    flag: null,
    fallback: null,
    unit: 'CIDR blocks',
    meaning:
      'the proxies whose `X-Forwarded-For` names the client, separated by commas: `127.0.0.1`, `10.0.0.0/8` (default: none)',
    parse: cidrs,
  } satisfies Setting<readonly Cidr[]>,
} as const
