import { parseNamedDestination, type NamedDestination } from '../domain/network/outbound-rule.ts'
import type { Setting } from './setting.ts'

const namedDestinations: Setting<readonly NamedDestination[]>['parse'] = (seen) => {
  const words = seen.toLowerCase().split(/[\s,]+/)
  const value = words.filter((word) => word !== '').map(parseNamedDestination)
  const parsed = value.filter((entry) => entry !== null)
  return parsed.length === value.length
    ? { value: parsed }
    : {
        accepted:
          'hosts such as localhost:5000 or registry.lan, addresses, and blocks such as 10.1.0.0/16, separated by commas',
      }
}

/** Accepts the URL of an HTTP proxy, with a user and password if it needs them. */
const httpProxy: Setting<URL>['parse'] = (seen) => {
  const url = URL.parse(seen)
  return url !== null && url.protocol === 'http:' && url.hostname !== ''
    ? { value: url }
    : { accepted: 'the http:// URL of a proxy, such as http://proxy.lan:3128' }
}

/** The settings for connections that tenants cause: of a worker to registries, and of the control plane to webhooks. */
export const OUTBOUND_SETTINGS = {
  registriesAllowed: {
    variable: 'SANDYARD_REGISTRIES_ALLOWED',
    flag: null,
    fallback: null,
    unit: 'hosts, addresses, blocks',
    meaning:
      'the registries on loopback or private addresses that sandboxes may use, separated by commas: `localhost:5000`, `registry.lan`, `10.1.0.0/16` (default: none)',
    parse: namedDestinations,
  } satisfies Setting<readonly NamedDestination[]>,
  webhooksAllowed: {
    variable: 'SANDYARD_WEBHOOKS_ALLOWED',
    flag: null,
    fallback: null,
    unit: 'hosts, addresses, blocks',
    meaning:
      'the hosts on loopback or private addresses that webhooks may be sent to, also by plain HTTP, separated by commas: `localhost:8080`, `hooks.lan`, `10.1.0.0/16` (default: none)',
    parse: namedDestinations,
  } satisfies Setting<readonly NamedDestination[]>,
  httpsProxy: {
    variable: 'HTTPS_PROXY',
    flag: null,
    fallback: null,
    unit: 'URL',
    meaning: 'the HTTP proxy for pulls of images, webhooks and traces; also read as `https_proxy`',
    isSecret: true,
    parse: httpProxy,
  } satisfies Setting<URL>,
  noProxy: {
    variable: 'NO_PROXY',
    flag: null,
    fallback: null,
    unit: 'hosts, addresses, blocks',
    meaning:
      'the hosts that are asked without the proxy, separated by commas: hosts with their subdomains, addresses, blocks, or `*`; also read as `no_proxy`',
    parse: (seen) => ({ value: seen.split(/[\s,]+/).filter((entry) => entry !== '') }),
  } satisfies Setting<readonly string[]>,
} as const
