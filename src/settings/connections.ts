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

/** The settings of the connections between machines. */
export const CONNECTION_SETTINGS = {
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
