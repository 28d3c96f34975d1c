import type { Channel, Family } from './channel.ts'

/**
 * Answers for subjects that a guest doesn't offer, in the terms that the client understands: it takes a `core.error`
 * in a file session for a protocol failure (section 8.3).
 */
export function makeFsRefusal(channel: Channel): Family<'core.fs.request' | 'core.fs.data'> {
  return {
    handlers: {
      'core.fs.request': ({ id }) => {
        channel.send(id, 'core.fs.response', {
          ok: false,
          error: 'files: Operation not supported (os error 95)',
          data: null,
        })
      },
      'core.fs.data': () => {
        // data of a write that was refused: the client may have sent them before it read the refusal
      },
    },
    close: holdsNothing,
  }
}

function holdsNothing(): void {
  // refusals open no sessions
}
