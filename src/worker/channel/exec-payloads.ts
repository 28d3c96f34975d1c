import { constants } from 'node:os'
import { errorCodeOf } from '../../lib/error-code.ts'
import {
  CborError,
  asFlag,
  asInteger,
  asList,
  asMap,
  asOptionalText,
  asText,
  asUnsigned64,
  decodeCbor,
} from '../../channel/cbor.ts'
import { ExecFailure, type GuestExec } from './guest.ts'

/** The terminal size for a request that asks for a tty without a size. */
const DEFAULT_ROWS = 24
const DEFAULT_COLS = 80

const U16 = { min: 0, max: 0xffff }
const I32 = { min: -0x8000_0000, max: 0x7fff_ffff }

/**
 * Decodes `core.exec.request`. Throws `CborError` for a wrong shape, and `ExecFailure` for a text that contains a NUL.
 */
export function readExecRequest(payload: Uint8Array): GuestExec {
  const map = asMap(decodeCbor(payload))
  const request: GuestExec = {
    cmd: asText(map['cmd']),
    args: asList(map['args'], asText),
    env: asList(map['env'], asText).filter((item) => item.indexOf('=') > 0),
    cwd: asOptionalText(map['cwd']),
    user: asOptionalText(map['user']),
    tty: asFlag(map['tty'])
      ? { rows: asSize(map['rows'], DEFAULT_ROWS), cols: asSize(map['cols'], DEFAULT_COLS) }
      : null,
    rlimits: asList(map['rlimits'], (item) => {
      const limit = asMap(item)
      return {
        resource: asText(limit['resource']),
        soft: asUnsigned64(limit['soft']),
        hard: asUnsigned64(limit['hard']),
      }
    }),
  }
  const texts = [request.cmd, ...request.args, ...request.env, request.cwd ?? '', request.user ?? '']
  if (texts.some((text) => text.includes('\0'))) {
    throw new ExecFailure('bad_args', 'a NUL byte in the program, its arguments, environment, folder or user', {
      errno: 22,
      errnoName: 'EINVAL',
    })
  }
  return request
}

/** Decodes the terminal size of `core.exec.resize`. */
export function readResize(payload: Uint8Array): { readonly rows: number; readonly cols: number } {
  const map = asMap(decodeCbor(payload))
  return { rows: asInteger(map['rows'], U16), cols: asInteger(map['cols'], U16) }
}

/** Decodes the Linux signal number of `core.exec.signal`. */
export function readSignal(payload: Uint8Array): number {
  return asInteger(asMap(decodeCbor(payload))['signal'], I32)
}

/**
 * Returns the fields of `core.exec.failed` for an error. The client sees the details of an `ExecFailure` or a
 * `CborError`. Any other error becomes a general message.
 */
export function failedPayload(error: unknown): Readonly<Record<string, unknown>> {
  const failure =
    error instanceof ExecFailure
      ? error
      : error instanceof CborError
        ? new ExecFailure('bad_args', `the request can't be read: ${error.message}`)
        : new ExecFailure('other', 'the sandbox could not start the process')
  return {
    kind: failure.kind,
    errno: failure.errno,
    errno_name: failure.errnoName,
    message: failure.message,
    stage: failure.stage,
  }
}

function asSize(value: unknown, absent: number): number {
  return value === undefined || value === null ? absent : asInteger(value, U16)
}

/**
 * Returns the number and name of a system error, as the agent protocol writes them. For any other error, both are null.
 */
export function errnoFields(error: unknown): { readonly errno: number | null; readonly errno_name: string | null } {
  const code = errorCodeOf(error)
  const errno = Object.entries(constants.errno).find(([name]) => name === code)?.[1]
  return errno === undefined ? { errno: null, errno_name: null } : { errno, errno_name: code }
}
