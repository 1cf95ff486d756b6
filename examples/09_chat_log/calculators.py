"""ChatLogCalculator writes the prompt, the answer and the times of each request into an SQLite file.

.venv/bin/ovserve serve --rest_port 8000 --model_name chat_log --model_path examples/09_chat_log
"""

import sqlite3

import msgspec

from ovserve.calculators.library import Context, Exchange, LoadContext, Observer, calculator


class ChatLogOptions(msgspec.Struct, frozen=True):
    database: str = "chats.sqlite"


@calculator("ChatLogCalculator")
class ChatLog(Observer):
    options_type = ChatLogOptions

    @classmethod
    def load(cls, lc: LoadContext) -> sqlite3.Connection:
        file = lc.path(lc.options(ChatLogOptions).database)
        database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        database.execute(
            "CREATE TABLE IF NOT EXISTS chats (prompt, answer, tokens, first_token, seconds, complete)"
        )
        return database

    def observe(self, cc: Context, exchange: Exchange) -> None:
        answer = exchange.answer
        row = (exchange.prompt, answer.choices[0].content, answer.completion_tokens)
        times = (exchange.first_token_seconds, exchange.seconds, exchange.complete)
        cc.state.execute("INSERT INTO chats VALUES (?, ?, ?, ?, ?, ?)", row + times)
