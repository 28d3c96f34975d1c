import { constants, type ClientHttp2Stream, type ServerHttp2Stream } from 'node:http2'
import { endsStream } from './http2-flags.ts'
import { RequestRefused } from '../request-refused.ts'
import { sendFields } from './send-fields.ts'
import { writeAll, type WriteBounds } from './sockets.ts'

type Options = {
  /** Reserves memory for fields until the stream ends. False if there is too little. */
  readonly keep: (fields: readonly string[]) => boolean
  readonly bounds: WriteBounds
  /** Is awaited before each piece of the body. */
  readonly nextStep: () => Promise<void>
  readonly onRefused: (refused: RequestRefused) => void
}

/** Copies a response unchanged, with the informational responses before it and the trailers after it. */
export function relayHttp2Response(
  from: ClientHttp2Stream,
  to: ServerHttp2Stream,
  { keep, bounds, nextStep, onRefused }: Options,
): void {
  let trailers: object = {}
  from.on('headers', (headers, _flags, rawHeaders) => {
    if (to.destroyed || !keep(rawHeaders)) return
    sendFields(to, () => {
      to.additionalHeaders(headers)
    })
  })
  from.on('trailers', (headers, _flags, rawHeaders) => {
    if (keep(rawHeaders)) trailers = headers
  })
  to.on('wantTrailers', () => {
    sendFields(to, () => {
      to.sendTrailers({ ...trailers })
    })
  })
  from.on('response', (_headers, flags, rawHeaders) => {
    if (to.destroyed || !keep(rawHeaders)) return
    const endStream = endsStream(flags)
    sendFields(to, () => {
      to.respond(rawHeaders, { endStream, waitForTrailers: !endStream, ...NO_DATE })
    })
    if (!endStream && to.headersSent)
      relayBody(from, to, { bounds, nextStep }).catch((error: unknown) => {
        if (error instanceof RequestRefused) onRefused(error)
        else if (!to.closed) to.close(from.rstCode || constants.NGHTTP2_INTERNAL_ERROR)
      })
  })
  from.on('close', () => {
    if (!to.headersSent && !to.closed) to.close(from.rstCode || constants.NGHTTP2_INTERNAL_ERROR)
  })
}

/** Keeps Node from adding a field that the server didn't send. Its types lack the option. */
const NO_DATE = { sendDate: false }

async function relayBody(
  from: ClientHttp2Stream,
  to: ServerHttp2Stream,
  { bounds, nextStep }: Pick<Options, 'bounds' | 'nextStep'>,
): Promise<void> {
  for await (const bytes of from.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    await nextStep()
    await writeAll(to, [bytes], bounds)
  }
  to.end()
}
