import { judgeOutbound, parseNamedDestination } from '../../src/domain/network/outbound-rule.ts'
import { makeGuardedHttp, type GuardedHttp } from '../../src/lib/outbound/guarded-http.ts'

/** The value of SANDYARD_REGISTRIES_ALLOWED by which the registries of tests, which listen on loopback, may be used. */
export const TEST_REGISTRIES = '127.0.0.0/8,localhost'

type OutboundOptions = {
  /** What the operator named, separated by commas. */
  readonly allowed?: string
  /** The addresses of names. Other names don't exist. By default, the system is asked. */
  readonly names?: Readonly<Record<string, readonly string[]>>
  /** The addresses of this machine. */
  readonly own?: readonly string[]
}

/** The guarded client with rules like those of a worker. By default, loopback is allowed. */
export function outboundHttp({ allowed = TEST_REGISTRIES, names, own = [] }: OutboundOptions = {}): GuardedHttp {
  const words = allowed.split(',').filter((word) => word !== '')
  const named = words.map(parseNamedDestination).filter((entry) => entry !== null)
  return makeGuardedHttp({
    judge: ({ url, address }) => judgeOutbound({ named, own }, url, address),
    ...(names === undefined
      ? {}
      : {
          resolve: (name: string) =>
            names[name] === undefined ? Promise.reject(new Error('ENOTFOUND')) : Promise.resolve(names[name]),
        }),
  })
}
